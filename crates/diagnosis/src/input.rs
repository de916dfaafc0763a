//! Reader of files named by a user: regular files, up to a limit. A pipe could make the program wait, and a
//! device never ends.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file of at most `limit` bytes.
///
/// # Errors
/// An error if the file cannot be opened, is not a regular file, or is longer.
pub fn open_regular_file(path: &Path, limit: u64) -> io::Result<File> {
    // Opening a pipe waits for its other end.
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory"));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("it is a pipe or a device: save its text in a file, and name that"));
    }
    if metadata.len() > limit {
        return Err(too_long(limit));
    }
    File::open(path)
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// The errors of [`open_regular_file`], and an error while the file is read.
pub fn read_regular_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    // A file can grow.
    read_stream(open_regular_file(path, limit)?, limit)
}

/// Reads at most `limit` bytes to the end of a stream.
///
/// # Errors
/// An error while the stream is read, or if it is longer.
pub fn read_stream(stream: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_long(limit)) } else { Ok(bytes) }
}

fn too_long(limit: u64) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {} MiB", limit >> 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_streams_up_to_the_limit_are_read_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (exact, longer) = (folder.path().join("exact"), folder.path().join("longer"));
        fs::write(&exact, vec![b'x'; 1 << 20]).unwrap();
        fs::write(&longer, vec![b'x'; (1 << 20) + 1]).unwrap();
        assert_eq!(read_regular_file(&exact, 1 << 20).unwrap().len(), 1 << 20);
        let problem = |path: &Path| read_regular_file(path, 1 << 20).unwrap_err().to_string();
        assert_eq!(problem(&longer), "it has more than 1 MiB");
        assert_eq!(read_stream(io::repeat(b'x'), 1 << 20).unwrap_err().to_string(), "it has more than 1 MiB");
        assert_eq!(problem(folder.path()), "it is a directory");
        assert!(problem(Path::new("/dev/zero")).starts_with("it is a pipe or a device"));
    }
}
