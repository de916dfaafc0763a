//! Description of a job's transport in one line: provider, protocol, interface and addresses, by host.

use crate::fabric::Error;
use crate::world::{self, World};

/// Number of hosts listed with their addresses.
const MOST_HOSTS: usize = 8;

/// The transport of a host's first rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransportSummary {
    /// The host's name.
    pub(crate) host: String,
    /// Inside the host: `shm (copies)`; empty when it is the same as between hosts.
    pub(crate) intra_host: String,
    /// Between hosts, provider and interface: `tcp on eth0`; empty when there are none.
    pub(crate) inter_host: String,
    /// Its address, in the provider's notation.
    pub(crate) address: String,
}

impl TransportSummary {
    fn to_message(&self) -> Vec<u8> {
        let Self { host, intra_host, inter_host, address } = self;
        [host.as_str(), intra_host, inter_host, address].join("\n").into_bytes()
    }

    fn from_message(message: &[u8]) -> Self {
        let text = String::from_utf8_lossy(message);
        let mut fields = text.split('\n').map(ToOwned::to_owned);
        let mut field = || fields.next().unwrap_or_default();
        Self { host: field(), intra_host: field(), inter_host: field(), address: field() }
    }
}

/// Describes all hosts in one line, the same on all ranks. Collective; `first` are the first ranks of the
/// hosts.
pub(crate) fn describe_job(
    world: &dyn World,
    own: &TransportSummary,
    first: &[usize],
) -> Result<String, Error> {
    let all = world.all_gather(&own.to_message())?;
    let ways = first.iter().map(|&rank| all.get(rank).map(|message| TransportSummary::from_message(message)));
    let ways: Option<Vec<TransportSummary>> = ways.collect();
    Ok(summary_line(&ways.ok_or(world::Error::Mismatch("a rank has no host".to_owned()))?))
}

fn summary_line(ways: &[TransportSummary]) -> String {
    if let [TransportSummary { intra_host, inter_host, address, .. }] = ways {
        let inter_host =
            if inter_host.is_empty() { String::new() } else { format!("{inter_host} at {address}") };
        let used = [intra_host.as_str(), inter_host.as_str()];
        return used.into_iter().filter(|used| !used.is_empty()).collect::<Vec<_>>().join(", ");
    }
    let intra_host =
        group_alike(ways, |summary| &summary.intra_host).into_iter().map(|(intra_host, hosts)| {
            let of_all = hosts.len() == ways.iter().filter(|summary| !summary.intra_host.is_empty()).count();
            let names =
                if of_all { "hosts".to_owned() } else { join_names(&hosts, |summary| summary.host.clone()) };
            format!("{intra_host} inside {names}")
        });
    let inter_host =
        group_alike(ways, |summary| &summary.inter_host).into_iter().map(|(inter_host, hosts)| {
            format!(
                "{inter_host} between {}",
                join_names(&hosts, |summary| format!("{} ({})", summary.host, summary.address))
            )
        });
    intra_host.chain(inter_host).collect::<Vec<_>>().join("; ")
}

/// Groups summaries by a field, in the order of the first ones; skips summaries with an empty field.
fn group_alike<'a>(
    ways: &'a [TransportSummary],
    of: impl Fn(&'a TransportSummary) -> &'a str,
) -> Vec<(&'a str, Vec<&'a TransportSummary>)> {
    let mut groups: Vec<(&str, Vec<&TransportSummary>)> = Vec::new();
    for summary in ways.iter().filter(|&summary| !of(summary).is_empty()) {
        match groups.iter_mut().find(|(same, _)| *same == of(summary)) {
            Some((_, group)) => group.push(summary),
            None => groups.push((of(summary), vec![summary])),
        }
    }
    groups
}

fn join_names(hosts: &[&TransportSummary], name: impl Fn(&TransportSummary) -> String) -> String {
    let mut names: Vec<String> = hosts.iter().take(MOST_HOSTS).map(|summary| name(summary)).collect();
    if hosts.len() > MOST_HOSTS {
        names.push(format!("{} more", hosts.len() - MOST_HOSTS));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(host: &str, intra_host: &str, inter_host: &str, address: &str) -> TransportSummary {
        let [host, intra_host, inter_host, address] =
            [host, intra_host, inter_host, address].map(ToOwned::to_owned);
        TransportSummary { host, intra_host, inter_host, address }
    }

    #[test]
    fn one_host_has_no_name() {
        assert_eq!(summary_line(&[summary("a", "shm (copies)", "", "")]), "shm (copies)");
        assert_eq!(summary_line(&[summary("a", "", "tcp on lo", "127.0.0.1:7")]), "tcp on lo at 127.0.0.1:7");
    }

    #[test]
    fn hosts_that_are_alike_are_told_together() {
        let a = summary("a", "shm (copies)", "tcp on eth0", "10.0.0.1:7");
        let b = summary("b", "shm (copies)", "tcp on eth0", "10.0.0.2:8");
        // Alone on its host.
        let c = summary("c", "", "tcp on ib0", "10.1.0.3:9");
        assert_eq!(
            summary_line(&[a.clone(), b.clone(), c.clone()]),
            "shm (copies) inside hosts; tcp on eth0 between a (10.0.0.1:7), b (10.0.0.2:8); tcp on ib0 \
             between c (10.1.0.3:9)"
        );
        let d = summary("d", "shm (cross-memory attach)", "tcp on eth0", "10.0.0.4:7");
        assert_eq!(
            summary_line(&[a.clone(), d]),
            "shm (copies) inside a; shm (cross-memory attach) inside d; tcp on eth0 between a (10.0.0.1:7), \
             d (10.0.0.4:7)"
        );
        assert_eq!(TransportSummary::from_message(&a.to_message()), a);
        assert_eq!(TransportSummary::from_message(b"x\ny"), summary("x", "y", "", ""));
        let many = vec![c; 20];
        assert!(summary_line(&many).ends_with("c (10.1.0.3:9), 12 more"), "{}", summary_line(&many));
    }
}
