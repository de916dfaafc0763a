//! What carries a job's messages, in a line for people: provider, protocol, interface and addresses, host by host.

use crate::fabric::Error;
use crate::world::{self, World};

/// So many hosts are told with their addresses.
const MOST_HOSTS: usize = 8;

/// What the first rank of a host uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Way {
    /// The host's name.
    pub(crate) host: String,
    /// Between its ranks: `shm (copies)`; empty when that is the same as to other hosts.
    pub(crate) inside: String,
    /// To other hosts, provider and interface: `tcp on eth0`; empty when there are none.
    pub(crate) outside: String,
    /// Its address there, in the provider's notation.
    pub(crate) address: String,
}

impl Way {
    fn to_message(&self) -> Vec<u8> {
        let Self { host, inside, outside, address } = self;
        [host.as_str(), inside, outside, address].join("\n").into_bytes()
    }

    fn from_message(message: &[u8]) -> Self {
        let text = String::from_utf8_lossy(message);
        let mut fields = text.split('\n').map(ToOwned::to_owned);
        let mut field = || fields.next().unwrap_or_default();
        Self { host: field(), inside: field(), outside: field(), address: field() }
    }
}

/// The ways of all hosts, in a line that is the same on all ranks. Collective; `first` are the first ranks of the hosts.
pub(crate) fn tell(world: &dyn World, own: &Way, first: &[usize]) -> Result<String, Error> {
    let all = world.all_gather(&own.to_message())?;
    let ways = first.iter().map(|&rank| all.get(rank).map(|message| Way::from_message(message)));
    let ways: Option<Vec<Way>> = ways.collect();
    Ok(line(&ways.ok_or(world::Error::Mismatch("a rank has no host".to_owned()))?))
}

fn line(ways: &[Way]) -> String {
    if let [Way { inside, outside, address, .. }] = ways {
        let outside = if outside.is_empty() { String::new() } else { format!("{outside} at {address}") };
        let used = [inside.as_str(), outside.as_str()];
        return used.into_iter().filter(|used| !used.is_empty()).collect::<Vec<_>>().join(", ");
    }
    let inside = alike(ways, |way| &way.inside).into_iter().map(|(inside, hosts)| {
        let of_all = hosts.len() == ways.iter().filter(|way| !way.inside.is_empty()).count();
        let names = if of_all { "hosts".to_owned() } else { names(&hosts, |way| way.host.clone()) };
        format!("{inside} inside {names}")
    });
    let outside = alike(ways, |way| &way.outside).into_iter().map(|(outside, hosts)| {
        format!("{outside} between {}", names(&hosts, |way| format!("{} ({})", way.host, way.address)))
    });
    inside.chain(outside).collect::<Vec<_>>().join("; ")
}

/// Ways of which something is the same, in the order of the first ones; those that have nothing are left out.
fn alike<'a>(ways: &'a [Way], of: impl Fn(&'a Way) -> &'a str) -> Vec<(&'a str, Vec<&'a Way>)> {
    let mut groups: Vec<(&str, Vec<&Way>)> = Vec::new();
    for way in ways.iter().filter(|&way| !of(way).is_empty()) {
        match groups.iter_mut().find(|(same, _)| *same == of(way)) {
            Some((_, group)) => group.push(way),
            None => groups.push((of(way), vec![way])),
        }
    }
    groups
}

fn names(hosts: &[&Way], name: impl Fn(&Way) -> String) -> String {
    let mut names: Vec<String> = hosts.iter().take(MOST_HOSTS).map(|way| name(way)).collect();
    if hosts.len() > MOST_HOSTS {
        names.push(format!("{} more", hosts.len() - MOST_HOSTS));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(host: &str, inside: &str, outside: &str, address: &str) -> Way {
        let [host, inside, outside, address] = [host, inside, outside, address].map(ToOwned::to_owned);
        Way { host, inside, outside, address }
    }

    #[test]
    fn one_host_has_no_name() {
        assert_eq!(line(&[way("a", "shm (copies)", "", "")]), "shm (copies)");
        assert_eq!(line(&[way("a", "", "tcp on lo", "127.0.0.1:7")]), "tcp on lo at 127.0.0.1:7");
    }

    #[test]
    fn hosts_that_are_alike_are_told_together() {
        let a = way("a", "shm (copies)", "tcp on eth0", "10.0.0.1:7");
        let b = way("b", "shm (copies)", "tcp on eth0", "10.0.0.2:8");
        // Alone on its host.
        let c = way("c", "", "tcp on ib0", "10.1.0.3:9");
        assert_eq!(
            line(&[a.clone(), b.clone(), c.clone()]),
            "shm (copies) inside hosts; tcp on eth0 between a (10.0.0.1:7), b (10.0.0.2:8); tcp on ib0 between c \
             (10.1.0.3:9)"
        );
        let d = way("d", "shm (cross-memory attach)", "tcp on eth0", "10.0.0.4:7");
        assert_eq!(
            line(&[a.clone(), d]),
            "shm (copies) inside a; shm (cross-memory attach) inside d; tcp on eth0 between a (10.0.0.1:7), d \
             (10.0.0.4:7)"
        );
        assert_eq!(Way::from_message(&a.to_message()), a);
        assert_eq!(Way::from_message(b"x\ny"), way("x", "y", "", ""));
        let many = vec![c; 20];
        assert!(line(&many).ends_with("c (10.1.0.3:9), 12 more"), "{}", line(&many));
    }
}
