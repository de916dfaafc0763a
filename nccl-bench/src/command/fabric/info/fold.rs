//! Merging of entries into one row if only address, fabric, endpoint type or device differ.

use collectives::fabric::{Info, Link};

/// The kinds of transfers, and the memory of devices. All other capabilities qualify them.
const KINDS: [&str; 7] =
    ["FI_MSG", "FI_TAGGED", "FI_RMA", "FI_ATOMIC", "FI_COLLECTIVE", "FI_MULTICAST", "FI_HMEM"];

/// A row of the table. Lists are in the order of the entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    pub(super) provider: String,
    pub(super) domains: Vec<String>,
    /// Without prefix: `RDM`.
    pub(super) endpoints: Vec<String>,
    /// Without prefix: `MSG`.
    pub(super) capabilities: Vec<&'static str>,
    pub(super) link: Option<String>,
    pub(super) fabrics: Vec<String>,
}

/// Merges entries in libfabric's order of preference: first the endpoint types and fabrics of a domain with
/// the same capabilities, then the domains with all of these in common.
pub(super) fn fold_entries(entries: &[Info]) -> Vec<Row> {
    let mut of_domains: Vec<Row> = Vec::new();
    for entry in entries {
        let row = Row::from_entry(entry);
        let same = |other: &&mut Row| {
            (&other.provider, &other.domains, &other.capabilities, &other.link)
                == (&row.provider, &row.domains, &row.capabilities, &row.link)
        };
        match of_domains.iter_mut().find(same) {
            Some(other) => {
                add_missing(&mut other.endpoints, row.endpoints);
                add_missing(&mut other.fabrics, row.fabrics);
            }
            None => of_domains.push(row),
        }
    }
    let mut rows: Vec<Row> = Vec::new();
    for row in of_domains {
        let same = |other: &&mut Row| Row { domains: row.domains.clone(), ..(**other).clone() } == row;
        match rows.iter_mut().find(same) {
            Some(other) => add_missing(&mut other.domains, row.domains),
            None => rows.push(row),
        }
    }
    rows
}

impl Row {
    fn from_entry(entry: &Info) -> Self {
        let short = |name: &str| name.strip_prefix("FI_EP_").unwrap_or(name).to_owned();
        let kinds = KINDS.into_iter().filter(|kind| entry.capabilities.contains(*kind));
        Self {
            provider: entry.provider.clone(),
            domains: vec![entry.domain.clone()],
            endpoints: vec![short(&entry.endpoint)],
            capabilities: kinds.map(|kind| kind.strip_prefix("FI_").unwrap_or(kind)).collect(),
            link: entry.nic.as_ref().and_then(|nic| nic.link.as_ref()).map(link_text),
            fabrics: vec![entry.fabric.clone()],
        }
    }
}

fn add_missing(list: &mut Vec<String>, more: Vec<String>) {
    for name in more {
        if !list.contains(&name) {
            list.push(name);
        }
    }
}

/// Returns state and speed: `up, 100 Gb/s`.
pub(super) fn link_text(link: &Link) -> String {
    match link.bits_per_second {
        0 => link.state.clone(),
        bits => format!("{}, {} Gb/s", link.state, gigabits_text(bits)),
    }
}

/// Returns a number of gigabits: `100`, `2.5`.
fn gigabits_text(bits: usize) -> String {
    let tenths = (bits + 50_000_000) / 100_000_000;
    match tenths % 10 {
        0 => (tenths / 10).to_string(),
        tenth => format!("{}.{tenth}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use collectives::fabric::Nic;

    fn entry(provider: &str, fabric: &str, domain: &str, endpoint: &str, capabilities: &str) -> Info {
        let mut entry = Info::default();
        entry.provider = provider.to_owned();
        entry.fabric = fabric.to_owned();
        entry.domain = domain.to_owned();
        entry.endpoint = format!("FI_EP_{endpoint}");
        entry.capabilities = capabilities.split(' ').map(|name| format!("FI_{name}")).collect();
        entry
    }

    fn up_to(state: &str, bits_per_second: usize) -> Link {
        let mut link = Link::default();
        (link.state, link.bits_per_second) = (state.to_owned(), bits_per_second);
        link
    }

    fn on_nic(mut entry: Info, state: &str, bits_per_second: usize) -> Info {
        let mut nic = Nic::default();
        nic.link = Some(up_to(state, bits_per_second));
        entry.nic = Some(nic);
        entry
    }

    fn brief(row: &Row) -> String {
        let Row { provider, domains, endpoints, capabilities, link, fabrics } = row;
        let lists = [domains, endpoints, fabrics].map(|list| list.join("+"));
        format!("{provider} {} {}", lists.join(" "), capabilities.join("+"))
            + &link.as_ref().map_or_else(String::new, |link| format!(" {link}"))
    }

    fn folded(entries: &[Info]) -> Vec<String> {
        fold_entries(entries).iter().map(brief).collect()
    }

    #[test]
    fn addresses_and_types_of_endpoints_of_a_domain_are_one_row() {
        let entries = [
            entry("sockets", "10.0.0.0/8", "eth0", "RDM", "RMA MSG SEND"),
            entry("sockets", "fe80::/64", "eth0", "RDM", "RMA MSG SEND"),
            entry("sockets", "10.0.0.0/8", "eth0", "MSG", "RMA MSG RECV"),
            entry("sockets", "10.0.0.0/8", "eth0", "RDM", "RMA MSG SEND"),
        ];
        assert_eq!(folded(&entries), ["sockets eth0 RDM+MSG 10.0.0.0/8+fe80::/64 MSG+RMA"]);
    }

    #[test]
    fn what_can_do_something_else_keeps_a_row_of_its_own() {
        let entries = [
            entry("tcp", "lo", "lo", "RDM", "MSG TAGGED"),
            entry("tcp", "lo", "lo", "MSG", "MSG"),
            entry("tcp;ofi_rxm", "lo", "lo", "RDM", "MSG TAGGED"),
        ];
        let expected = ["tcp lo RDM lo MSG+TAGGED", "tcp lo MSG lo MSG", "tcp;ofi_rxm lo RDM lo MSG+TAGGED"];
        assert_eq!(folded(&entries), expected);
    }

    #[test]
    fn devices_that_have_all_in_common_are_one_row() {
        let efa = |device: &str, endpoint: &str, state: &str| {
            on_nic(entry("efa", "efa", device, endpoint, "MSG RMA"), state, 100_000_000_000)
        };
        let entries = [
            efa("rdmap0", "RDM", "up"),
            efa("rdmap1", "RDM", "up"),
            efa("rdmap2", "RDM", "down"),
            efa("rdmap0", "DGRAM", "up"),
            efa("rdmap1", "DGRAM", "up"),
        ];
        let expected = [
            "efa rdmap0+rdmap1 RDM+DGRAM efa MSG+RMA up, 100 Gb/s",
            "efa rdmap2 RDM efa MSG+RMA down, 100 Gb/s",
        ];
        assert_eq!(folded(&entries), expected);
        // Other fabrics give other rows.
        let two =
            [entry("tcp", "10.0.0.0/8", "a", "RDM", "MSG"), entry("tcp", "11.0.0.0/8", "b", "RDM", "MSG")];
        assert_eq!(fold_entries(&two).len(), 2);
        assert_eq!(fold_entries(&[]), []);
    }

    #[test]
    fn speeds_are_in_gigabits() {
        for (bits, text) in [
            (100_000_000_000, "up, 100 Gb/s"),
            (2_500_000_000, "up, 2.5 Gb/s"),
            (96_970_000_000, "up, 97 Gb/s"),
            (0, "up"),
        ] {
            assert_eq!(link_text(&up_to("up", bits)), text);
        }
    }
}
