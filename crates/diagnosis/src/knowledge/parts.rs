//! Parts of NCCL, by the files of its source.

use std::sync::OnceLock;

use serde::Deserialize;

/// The compiled-in file.
const FILE: &str = include_str!("../../knowledge/parts.toml");

/// The file of the parts.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PartFile {
    part: Vec<Part>,
}

/// A part of NCCL.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// Beginnings of the paths of its files.
    files: Vec<String>,
    /// The part in words: `its start over TCP (bootstrap)`.
    pub(crate) name: String,
    /// True for code that several parts use (sockets, proxy): another file of the same failure says more.
    #[serde(default)]
    pub(crate) shared: bool,
    /// The usual causes of a failure there.
    pub(crate) cause: String,
    /// The steps that find the cause.
    pub(crate) remedy: String,
}

/// Returns the part of a place in the source: `misc/socket.cc:666`, `include/shm.h:42`.
pub(crate) fn find_part(place: &str) -> Option<&'static Part> {
    static PARTS: OnceLock<Vec<Part>> = OnceLock::new();
    // A test fails for a file that cannot be read.
    let parts = PARTS.get_or_init(|| toml::from_str::<PartFile>(FILE).unwrap_or_default().part);
    // RCCL writes the whole path.
    let path = place.rsplit_once("/src/").map_or(place, |(_, path)| path);
    let path = path.strip_prefix("include/").unwrap_or(path);
    parts.iter().find(|part| part.files.iter().any(|file| path.starts_with(file.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_of_a_place_is_found() {
        for (place, words) in [
            ("misc/socket.cc:666", "TCP connection"),
            ("bootstrap.cc:77", "bootstrap"),
            ("include/shm.h:42", "shared memory"),
            ("/builds/rccl/build/src/transport/net_socket.cpp:33", "socket transport"),
            ("transport/net_ib/connect.cc:12", "InfiniBand"),
            ("transport/net_ib.cc:12", "InfiniBand"),
            ("transport/net.cc:12", "network transport"),
            ("net.cc:12", "network plugin"),
            ("graph/search.cc:703", "topology"),
        ] {
            assert!(find_part(place).is_some_and(|part| part.name.contains(words)), "{place}");
        }
        for place in ["init.cc:9", "group.cc:9", "enqueue.cc:9", "", "ProcessGroupNCCL.cpp:33"] {
            assert_eq!(find_part(place), None, "{place}");
        }
    }
}
