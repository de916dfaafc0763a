//! The file of a segment, in `/dev/shm`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[cfg(not(loom))]
use super::layout::Mapping;
use super::layout::segment_len;
#[cfg(loom)]
use super::model::Mapping;
use crate::fabric::shared_memory::shm;

/// The number of the segment in a file of this name.
pub(super) fn number_in(name: &str) -> io::Result<u64> {
    let number = shm::number_in(name).ok_or(io::ErrorKind::InvalidInput)?;
    // Odd: see `RankState::claim`.
    Ok(number | 1)
}

fn segment_path(name: &str) -> PathBuf {
    Path::new(shm::DIRECTORY).join(name)
}

/// Opens the file of another rank's segment.
pub(super) fn open_file(name: &str) -> io::Result<File> {
    number_in(name)?;
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(segment_path(name))
}

/// Creates a file for a segment, accessible to this user only. Returns also its name.
pub(super) fn create_file(ranks: usize) -> io::Result<(String, File)> {
    let name = shm::new_name();
    let new =
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(segment_path(&name))?;
    prepare_file(&name, &new, ranks).inspect_err(|_| remove_name(&name))?;
    Ok((name, new))
}

/// Removes a name. Its memory stays until no rank has mapped it.
pub(super) fn remove_name(name: &str) {
    let _ = fs::remove_file(segment_path(name));
}

/// Reserves the memory of a new file, and lets the ranks claim their areas.
fn prepare_file(name: &str, file: &File, ranks: usize) -> io::Result<()> {
    // SAFETY: an open file. Reserving its memory keeps later writes from running out of it (SIGBUS).
    let result = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, segment_len(ranks) as libc::off_t) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result));
    }
    let (memory, number) = (Mapping::new(file, ranks)?, number_in(name)?);
    (0..ranks).for_each(|rank| memory.area(rank).state.offer(number));
    Ok(())
}
