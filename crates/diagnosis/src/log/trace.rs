//! Result codes traced through NCCL's functions, and repeated attempts to connect.

use memchr::memmem;

use super::text::{first_word, parse_number, parse_small_number};

/// A result code at a place of NCCL's source: `misc/socket.cc:635 -> 6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trace<'a> {
    /// File and line.
    pub(super) place: &'a [u8],
    pub(super) code: u32,
}

/// A repeated attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retry<'a> {
    /// Address of the peer, if the version writes it.
    pub(super) peer: Option<&'a [u8]>,
    /// `Connection refused`.
    pub(super) reason: &'a [u8],
    /// Number of the attempt, and of all.
    pub(super) attempt: Option<(u32, u32)>,
}

/// Reads a trace. `ncclInProgress` is not an error, and traces of RAS do not concern the job.
pub(super) fn parse_trace(message: &[u8]) -> Option<Trace<'_>> {
    let place = first_word(message);
    let rest = message[place.len()..].strip_prefix(b" ")?;
    // 2.30 and later name the function: `misc/socket.cc:609 (ncclSocketProgress) -> 6`.
    let function = if rest.starts_with(b"(") { first_word(rest) } else { b"" };
    let (code, _) = parse_small_number(rest[function.len()..].trim_ascii_start().strip_prefix(b"-> ")?)?;
    let colon = memchr::memrchr(b':', place)?;
    let is_line = matches!(parse_number(&place[colon + 1..]), Some((_, [])));
    // RCCL writes the whole path.
    let place = memmem::rfind(place, b"/src/").map_or(place, |start| &place[start + 5..]);
    (is_line && (1..16).contains(&code) && code != 7 && !place.starts_with(b"ras/"))
        .then_some(Trace { place, code })
}

/// Reads `connect to 192.0.2.1<5> returned Connection refused, retrying (1/34) after sleep for 100 msec`,
/// before 2.27 without address, and before 2.24 `Call to connect returned Connection refused, retrying`.
pub(super) fn parse_retry(message: &[u8]) -> Option<Retry<'_>> {
    let end =
        memchr::memchr_iter(b',', message).find(|&comma| message[comma..].starts_with(b", retrying"))?;
    let start = memmem::find(&message[..end], b"connect ")?;
    let rest = &message[start + 8..end];
    let (peer, rest) = match rest.strip_prefix(b"to ") {
        Some(rest) => (Some(first_word(rest)), &rest[(first_word(rest).len() + 1).min(rest.len())..]),
        None => (None, rest),
    };
    let reason = rest.strip_prefix(b"returned ")?;
    let attempt = message[end + 10..].strip_prefix(b" (").and_then(|counts| {
        let (attempt, rest) = parse_small_number(counts)?;
        let (all, _) = parse_small_number(rest.strip_prefix(b"/")?)?;
        Some((attempt, all))
    });
    Some(Retry { peer, reason, attempt })
}

/// Returns NCCL's name of a result code.
pub(super) fn name(code: u32) -> &'static str {
    match code {
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "unknown result",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_have_their_place_and_code() {
        for (message, place, code) in [
            ("misc/socket.cc:635 -> 6", "misc/socket.cc:635", 6),
            ("group.cc:68 -> 1 [Async thread]", "group.cc:68", 1),
            ("misc/socket.cc:609 (ncclSocketProgress) -> 6", "misc/socket.cc:609", 6),
            ("proxy.cc:983 (ncclProxyProgress) -> 6 [Progress Thread]", "proxy.cc:983", 6),
            ("/builds/rccl/build/src/transport/net.cpp:33 -> 2", "transport/net.cpp:33", 2),
        ] {
            assert_eq!(
                parse_trace(message.as_bytes()),
                Some(Trace { place: place.as_bytes(), code }),
                "{message}"
            );
        }
        for message in [
            "",
            "group.cc:68 -> 7 [Async thread]",
            "group.cc:68 -> 0",
            "ras/client_support.cc:178 -> 2",
            "group.cc -> 1",
            "group.cc:68 (words",
            "ras/client_support.cc:178 (rasClient) -> 2",
            "Ring 00 : 1 -> 2 -> 3",
        ] {
            assert_eq!(parse_trace(message.as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn retries_of_all_versions_are_read() {
        let refused = Retry { peer: None, reason: b"Connection refused", attempt: None };
        for (message, expected) in [
            ("Call to connect returned Connection refused, retrying", refused),
            (
                "socketPollConnect: connect returned Connection refused, retrying (2/34) after sleep for 200 \
                 msec",
                Retry { attempt: Some((2, 34)), ..refused },
            ),
            (
                "socketPollConnect: connect to 192.0.2.3<41> returned Connection refused, retrying (1/34) \
                 after",
                Retry { peer: Some(b"192.0.2.3<41>"), attempt: Some((1, 34)), ..refused },
            ),
        ] {
            assert_eq!(parse_retry(message.as_bytes()), Some(expected), "{message}");
        }
        for message in
            ["Call to accept returned x, retrying", "connect to x, retrying", "connect , retrying", ""]
        {
            assert_eq!(parse_retry(message.as_bytes()), None, "{message}");
        }
    }
}
