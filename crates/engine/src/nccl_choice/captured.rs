//! The whole log of NCCL in this process, for a diagnosis of it.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::log::create_memory_file;
use super::settings;

/// Subsystems with messages about versions, network, topology, transports, the environment, and the end of
/// communicators (`DESTROY` from NCCL 2.30 on; older versions ignore the name and use `INIT` instead).
const SUBSYSTEMS: &str = "INIT,BOOTSTRAP,ENV,GRAPH,NET,P2P,SHM,TUNING,DESTROY";

/// NCCL's log in a file in memory.
#[derive(Debug)]
pub struct CapturedLog(File);

/// Place of a process's log, for other processes of its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlace {
    path: String,
    device: u64,
    inode: u64,
}

impl CapturedLog {
    /// Makes NCCL write its log, with the level INFO, to a file of this process. Replaces the user's
    /// settings.
    ///
    /// Must be called in `main`, before NCCL is loaded and before any thread starts.
    ///
    /// # Errors
    /// When the file cannot be made, or the process has several threads already.
    pub fn start_capture() -> anyhow::Result<Self> {
        let (file, path) = create_memory_file().context("making a place for NCCL's log")?;
        let values = [
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", SUBSYSTEMS),
            ("NCCL_DEBUG_FILE", &path),
            ("NCCL_DEBUG_TIMESTAMP_LEVELS", "WARN"),
        ];
        settings::set_variables(values.map(|(name, value)| (name, value.to_owned())).into())?;
        Ok(Self(file))
    }

    /// Returns the place of the log.
    ///
    /// # Errors
    /// When the system does not provide it.
    pub fn place(&self) -> io::Result<LogPlace> {
        let known = self.0.metadata()?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd());
        Ok(LogPlace { path, device: known.dev(), inode: known.ino() })
    }

    /// Opens the log of another process of this host. It remains readable after the end of that process.
    ///
    /// # Errors
    /// When it cannot be opened: it belongs to another user, or the processes have different namespaces.
    pub fn open_place(place: &LogPlace) -> io::Result<Self> {
        let file = File::open(&place.path)?;
        let found = file.metadata()?;
        if (found.dev(), found.ino()) != (place.device, place.inode) {
            return Err(io::Error::other(format!("{} is a different file", place.path)));
        }
        Ok(Self(file))
    }

    /// Returns NCCL's lines so far, at most `limit` bytes of them, and true if they are complete.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read_lines(&self, limit: u64) -> io::Result<(Vec<u8>, bool)> {
        let mut file = File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        file.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        file.take(limit).read_to_end(&mut text)?;
        let whole = text.len() as u64 >= self.0.metadata()?.len();
        Ok((text, whole))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn the_log_is_read_from_its_beginning_up_to_the_limit() {
        let (file, path) = create_memory_file().unwrap();
        let mut nccl = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        nccl.write_all(b"one\ntwo\n").unwrap();
        let log = CapturedLog(file);
        assert_eq!(log.read_lines(100).unwrap(), (b"one\ntwo\n".to_vec(), true));
        assert_eq!(log.read_lines(4).unwrap(), (b"one\n".to_vec(), false));
        nccl.write_all(b"three\n").unwrap();
        assert_eq!(log.read_lines(100).unwrap().0.len(), 14);
    }

    #[test]
    fn another_process_opens_the_log_and_no_other_file() {
        let (file, path) = create_memory_file().unwrap();
        let log = CapturedLog(file);
        let place = log.place().unwrap();
        let opened = CapturedLog::open_place(&place).unwrap();
        drop(log);
        std::fs::write(path, "late").unwrap_err();
        assert_eq!(opened.read_lines(100).unwrap(), (Vec::new(), true));
        let (other, _) = create_memory_file().unwrap();
        let other = LogPlace { path: CapturedLog(other).place().unwrap().path, ..place };
        CapturedLog::open_place(&other).unwrap_err();
    }
}
