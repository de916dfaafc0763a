//! Lines about channels: `Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA`.

use super::digest::Transport;
use super::text;

/// Largest credible number of ranks in a line.
pub(super) const MOST_RANKS: u32 = 1 << 20;

/// A channel from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankChannel<'a> {
    /// Number of the channel.
    pub(super) number: u32,
    /// 0 for collectives, 1 for send and receive.
    pub(super) index: u32,
    /// Sender.
    pub(super) from: u32,
    /// Receiver.
    pub(super) to: u32,
    /// True for the line of the receiver.
    pub(super) is_receive: bool,
    /// The way of the data.
    pub(super) via: Via<'a>,
    /// Number of ranks of the communicator. Only RCCL writes it.
    pub(super) ranks: Option<u32>,
}

/// [`Transport`], borrowed from the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Via<'a> {
    P2p { how: &'a [u8], read: bool },
    Mnnvl,
    Shm,
    Net { name: &'a [u8], device: Option<u32>, gdr: bool },
    Other(&'a [u8]),
}

/// Content of a line after `Channel `.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChannelLine<'a> {
    /// A channel between two ranks.
    Channel(RankChannel<'a>),
    /// The order of a ring.
    Ring(Vec<u32>),
    /// The order of a ring, cut by NCCL or without ranks.
    CutRing,
}

/// Reads the text after `Channel `.
pub(super) fn parse_channel(rest: &[u8]) -> Option<ChannelLine<'_>> {
    let (number, rest) = text::parse_small_number(rest)?;
    let (index, rest) = match rest.strip_prefix(b"/") {
        Some(rest) => text::parse_small_number(rest)?,
        None => (0, rest),
    };
    let rest = rest.strip_prefix(b" : ")?;
    let Some((from, after)) =
        text::parse_small_number(rest).and_then(|(from, after)| Some((from, after.strip_prefix(b"[")?)))
    else {
        return parse_ring(rest);
    };
    let rest = &after[end_of_device(after)?..];
    let rest = rest.strip_prefix(b"] -> ")?;
    let (to, rest) = text::parse_small_number(rest)?;
    if from.max(to) >= MOST_RANKS {
        return None;
    }
    let rest = rest.strip_prefix(b"[")?;
    let rest = &rest[end_of_device(rest)?..];
    let rest = rest.strip_prefix(b"] ")?;
    let (is_receive, rest) = match rest.strip_prefix(b"[receive] ") {
        Some(rest) => (true, rest),
        None => (false, rest.strip_prefix(b"[send] ").unwrap_or(rest)),
    };
    let rest = rest.strip_prefix(b"via ")?;
    // RCCL: `via P2P/IPC comm 0xf37f2e0 nRanks 08`.
    let comm = memchr::memchr_iter(b' ', rest).find(|&space| rest[space..].starts_with(b" comm 0x"));
    let (rest, ranks) = match comm {
        Some(end) => (&rest[..end], ranks_at_end(&rest[end..])),
        None => (rest, None),
    };
    Some(ChannelLine::Channel(RankChannel {
        number,
        index,
        from,
        to,
        is_receive,
        via: parse_via(rest),
        ranks,
    }))
}

/// Returns the position of the bracket after the number of a device, a number of few digits.
fn end_of_device(text: &[u8]) -> Option<usize> {
    text.iter().position(|byte| *byte == b']')
}

fn ranks_at_end(text: &[u8]) -> Option<u32> {
    let start = memchr::memmem::find(text, b" nRanks ")? + 8;
    text::parse_small_number(&text[start..]).map(|(ranks, _)| ranks).filter(|ranks| *ranks <= MOST_RANKS)
}

/// Reads `0 1 2 3`. NCCL cuts long orders, and writes `...` at their end.
fn parse_ring(rest: &[u8]) -> Option<ChannelLine<'_>> {
    if rest.ends_with(b"...") {
        return Some(ChannelLine::CutRing);
    }
    let mut order = Vec::with_capacity(rest.len() / 2 + 1);
    for word in rest.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
        match text::parse_small_number(word) {
            Some((rank, [])) => order.push(rank),
            _ => return None,
        }
    }
    Some(if order.is_empty() { ChannelLine::CutRing } else { ChannelLine::Ring(order) })
}

fn parse_via(text: &[u8]) -> Via<'_> {
    let part = |rest: &'_ [u8]| memchr::memchr(b'/', rest).unwrap_or(rest.len());
    if let Some(rest) = text.strip_prefix(b"P2P/") {
        let how = &rest[..part(rest)];
        if how == b"MNNVL" {
            return Via::Mnnvl;
        }
        let rest = &rest[how.len()..];
        let is_indirect = how == b"indirect" && rest.ends_with(b"/read");
        return Via::P2p { how, read: is_indirect || rest.starts_with(b"/read") };
    }
    if text.starts_with(b"SHM/") || text == b"SHM" || text.starts_with(b"direct shared memory") {
        return Via::Shm;
    }
    if let Some(rest) = text.strip_prefix(b"NET/") {
        let name = &rest[..part(rest)];
        let rest = &rest[name.len()..];
        let rest = rest.strip_prefix(b"/").unwrap_or(rest);
        let device = text::parse_small_number(rest).map(|(device, _)| device);
        return Via::Net { name, device, gdr: rest[part(rest)..].starts_with(b"/GDRDMA") };
    }
    Via::Other(text)
}

impl Via<'_> {
    pub(super) fn matches_transport(&self, transport: &Transport) -> bool {
        match (self, transport) {
            (Self::P2p { how, read }, Transport::P2p { how: other, read: also }) => {
                *how == other.as_bytes() && read == also
            }
            (Self::Mnnvl, Transport::Mnnvl) | (Self::Shm, Transport::Shm) => true,
            (Self::Net { name, device, gdr }, Transport::Net { name: other, device: same, gdr: also }) => {
                device == same && gdr == also && *name == other.as_bytes()
            }
            (Self::Other(text), Transport::Other(other)) => *text == other.as_bytes(),
            _ => false,
        }
    }

    pub(super) fn to_transport(self) -> Transport {
        match self {
            Self::P2p { how, read } => Transport::P2p { how: text::name(how), read },
            Self::Mnnvl => Transport::Mnnvl,
            Self::Shm => Transport::Shm,
            Self::Net { name, device, gdr } => Transport::Net { name: text::name(name), device, gdr },
            Self::Other(text) => Transport::Other(text::name(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(line: &str) -> RankChannel<'_> {
        match parse_channel(line.strip_prefix("Channel ").unwrap().as_bytes()) {
            Some(ChannelLine::Channel(channel)) => channel,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn all_transports_of_all_versions_are_read() {
        let p2p = |how: &'static str, read| Via::P2p { how: how.as_bytes(), read };
        let net =
            |name: &'static str, device, gdr| Via::Net { name: name.as_bytes(), device: Some(device), gdr };
        for (line, via) in [
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", p2p("CUMEM", false)),
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", p2p("CUMEM", true)),
            ("Channel 00/1 : 0[0] -> 1[1] via P2P/IPC/read/CE", p2p("IPC", true)),
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", p2p("direct pointer", true)),
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/indirect/3[3]/read", p2p("indirect", true)),
            ("Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL/read", Via::Mnnvl),
            ("Channel 00 : 0[0] -> 1[1] via SHM/direct", Via::Shm),
            ("Channel 00 : 0[c000] -> 1[1a0] via SHM/direct/direct", Via::Shm),
            ("Channel 00 : 0[100000] -> 1[200000] via direct shared memory", Via::Shm),
            ("Channel 00 : 0[c1000] -> 1[c6000] via P2P/IPC comm 0xf37f2e0 nRanks 08", p2p("IPC", false)),
            ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/Socket/0", net("Socket", 0, false)),
            ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3/GDRDMA", net("IB", 3, true)),
            ("Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/3(12)/GDRDMA(PCI)/Shared", net("IB", 3, true)),
            (
                "Channel 00/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/11/Shared",
                net("AWS Libfabric", 11, false),
            ),
            ("Channel 00/0 : 0[0] -> 1[1] via XYZ/1", Via::Other(b"XYZ/1")),
        ] {
            let channel = channel(line);
            assert_eq!(
                (channel.from, channel.to, channel.is_receive, channel.via),
                (0, 1, false, via),
                "{line}"
            );
            assert!(channel.via.matches_transport(&channel.via.to_transport()), "{line}");
        }
        let channel = channel("Channel 11/1 : 12[4] -> 3[5] [receive] via NET/Libfabric/1/GDRDMA/Shared");
        assert_eq!((channel.number, channel.index, channel.from, channel.to), (11, 1, 12, 3));
        assert!(channel.is_receive);
    }

    #[test]
    fn rings_are_read_unless_they_are_cut() {
        assert_eq!(parse_channel(b"00/02 : 0 1 2 3"), Some(ChannelLine::Ring(vec![0, 1, 2, 3])));
        assert_eq!(parse_channel(b"00/24 :    0   1  10"), Some(ChannelLine::Ring(vec![0, 1, 10])));
        assert_eq!(parse_channel(b"00/24 :    0   1  1..."), Some(ChannelLine::CutRing));
        for wrong in
            ["", "x", "00", "00/0 : 0[0", "00/0 : 0[0] -> ", "00/0 : 0[0] -> 1[0] [send] v", "00/0 : a"]
        {
            assert_eq!(parse_channel(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
