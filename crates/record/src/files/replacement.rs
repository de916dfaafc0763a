//! Atomic replacement of files.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Read as _, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Data written to check for free space: a block of most file systems.
const TRIAL: [u8; 4096] = [0; 4096];

/// Number of bytes at the start of a file for recognizing its writer.
const START: u64 = 256;

/// Error for a file replaced by another program since the start of the run.
pub(super) const REPLACED: &str =
    "another program has replaced it during the run; name a file of its own for each run";

/// A version of a file. It lacks the time of the last change, because network file systems may set that
/// later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileVersion {
    device: u64,
    inode: u64,
    length: u64,
}

impl FileVersion {
    /// Returns the version of a file; `None` without a file.
    pub(super) fn from_path(path: &Path) -> io::Result<Option<Self>> {
        match path.metadata() {
            Ok(found) => Ok(Some(Self::from(&found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl From<&fs::Metadata> for FileVersion {
    fn from(found: &fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino(), length: found.len() }
    }
}

/// Refuses a file written by another program since it had the version `known`. A removed file is written
/// again.
///
/// # Errors
/// With the reason, or when the file cannot be examined.
pub(super) fn refuse_other(path: &Path, known: Option<FileVersion>) -> io::Result<()> {
    match FileVersion::from_path(path)? {
        Some(found) if known != Some(found) => Err(io::Error::other(REPLACED)),
        _ => Ok(()),
    }
}

/// Returns true for an unreadable file, and for a file with content not recognized by `is_own` from its first
/// bytes. Such a file is not replaced unless the user insists.
pub fn is_foreign(path: &Path, is_own: impl Fn(&[u8]) -> bool) -> bool {
    let mut start = Vec::new();
    match File::open(path).and_then(|file| file.take(START).read_to_end(&mut start)) {
        Ok(_) => !start.is_empty() && !is_own(&start),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

/// Checks that `path` can be replaced: it must be a regular file or not exist, and the creation of another
/// file with content beside it must succeed. Returns the path with all links resolved.
///
/// # Errors
/// When it cannot be replaced.
pub fn check_target(path: &Path) -> io::Result<PathBuf> {
    let target = resolve_links(path)?;
    if let Ok(found) = fs::metadata(&target) {
        if found.is_dir() {
            return Err(io::Error::other("it is a folder"));
        }
        if !found.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        if is_standard_output(&found) {
            return Err(io::Error::other("standard output goes there; name another file"));
        }
        // A rename would replace even a write-protected file, against the intention of its owner.
        OpenOptions::new().write(true).open(&target)?;
    }
    // Without a name, so nothing remains when a signal ends this process meanwhile.
    let folder = parent_folder(&target);
    let mut trial = tempfile::tempfile_in(folder).map_err(|error| without_name(error, folder))?;
    trial.write_all(&TRIAL)?;
    // Some file systems report a full disk only here.
    trial.sync_all()?;
    Ok(target)
}

/// Replaces `path` by a file with this content.
///
/// # Errors
/// When the content or the file cannot be written; the older file then stays unchanged.
pub fn write_file(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    replace_file(path, content, || Ok(()))?.sync_all()
}

/// Replaces `path` by a file with this content, and returns it for more writes. Calls `check` immediately
/// before the replacement.
///
/// # Errors
/// The errors of [`write_file`] and of `check`.
pub(super) fn replace_file(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    check: impl FnOnce() -> io::Result<()>,
) -> io::Result<File> {
    // The replaced file's mode is kept; a new file has the mode of the umask.
    let older = fs::metadata(path).map(|found| found.permissions());
    let mut file = tempfile::Builder::new()
        .prefix(".nccl-bench-")
        .suffix(".part")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(parent_folder(path))
        .map_err(|error| without_name(error, parent_folder(path)))?;
    if let Ok(older) = older {
        file.as_file().set_permissions(older)?;
    }
    let mut out = BufWriter::new(file.as_file_mut());
    content(&mut out)?;
    out.flush()?;
    drop(out);
    // Before the rename, so that a power cut leaves one of both files complete.
    file.as_file().sync_all()?;
    check()?;
    file.persist(path).map_err(|error| error.error)
}

/// Removes the temporary file's name, meaningless to users, from the error of its creation.
fn without_name(error: io::Error, folder: &Path) -> io::Error {
    let kind = error.kind();
    let text = error.to_string();
    let cause = text.split(" at path ").next().unwrap_or(&text);
    io::Error::new(kind, format!("no file can be made in {}: {cause}", folder.display()))
}

/// Returns true for the target file of standard output. Its replacement would lose the printed text.
fn is_standard_output(found: &fs::Metadata) -> bool {
    let output = io::stdout().as_fd().try_clone_to_owned().and_then(|output| File::from(output).metadata());
    output.is_ok_and(|output| (output.dev(), output.ino()) == (found.dev(), found.ino()))
}

/// Returns the folder of a file.
pub(super) fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the path with all links resolved; its last part need not exist.
pub(super) fn resolve_links(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let folder = parent_folder(path);
            // A link to a file yet to be created. A circle of links is another kind of error.
            if let Ok(target) = fs::read_link(path) {
                return resolve_links(&folder.join(target));
            }
            let name = path.file_name().ok_or(error)?;
            match fs::canonicalize(folder) {
                Ok(folder) => Ok(folder.join(name)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let message = format!("the folder {} does not exist", folder.display());
                    Err(io::Error::new(io::ErrorKind::NotFound, message))
                }
                Err(error) => Err(error),
            }
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::tests::names;

    fn full(out: &mut dyn Write) -> io::Result<()> {
        // More than the buffer holds, so the file itself has a part of it.
        out.write_all(&[b'x'; 100_000])?;
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    }

    #[test]
    fn a_full_disk_leaves_the_older_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        assert_eq!(write_file(&path, full).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(names(folder.path()), [""; 0]);

        write_file(&path, |out| out.write_all(b"older")).unwrap();
        assert_eq!(write_file(&path, full).unwrap_err().raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(names(folder.path()), ["run.json"]);
        assert_eq!(fs::read(&path).unwrap(), b"older");
    }

    #[test]
    fn the_older_file_is_replaced_only_when_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        fs::write(&path, "older").unwrap();
        write_file(&path, |out| {
            out.write_all(b"newer")?;
            out.flush()?;
            assert_eq!(fs::read(&path)?, b"older");
            Ok(())
        })
        .unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(names(folder.path()), ["run.json"]);
    }

    #[test]
    fn the_mode_of_the_older_file_and_links_to_it_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("run.json"), folder.path().join("latest.json"));
        fs::write(&path, "older").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("run.json", &link).unwrap();
        let target = check_target(&link).unwrap();
        write_file(&target, |out| out.write_all(b"newer")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read(&path).unwrap(), b"newer");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_link_to_a_file_that_is_not_there_yet_names_that_file() {
        let folder = tempfile::tempdir().unwrap();
        let link = |target: &str, name: &str| {
            let path = folder.path().join(name);
            std::os::unix::fs::symlink(target, &path).unwrap();
            path
        };
        let first = link("second.json", "first.json");
        link("new.json", "second.json");
        let target = check_target(&first).unwrap();
        assert_eq!(target, fs::canonicalize(folder.path()).unwrap().join("new.json"));
        write_file(&target, |out| out.write_all(b"newer")).unwrap();
        assert_eq!(fs::read(&first).unwrap(), b"newer");
        let circle = link("circle.json", "circle.json");
        assert!(check_target(&circle).is_err());
    }

    #[test]
    fn a_check_says_what_is_wrong_and_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let reason = |path: &Path| check_target(path).unwrap_err().to_string();
        assert_eq!(reason(folder.path()), "it is a folder");
        let missing = folder.path().join("missing");
        assert_eq!(
            reason(&missing.join("run.json")),
            format!("the folder {} does not exist", missing.display())
        );
        let file = folder.path().join("file");
        fs::write(&file, "content").unwrap();
        assert!(
            reason(&file.join("run.json")).contains("Not a directory"),
            "{}",
            reason(&file.join("run.json"))
        );
        // Not even root can make a file there.
        let reason = reason(Path::new("/proc/self/run.json"));
        assert!(
            ["denied", "No such file", "not permitted"].iter().any(|part| reason.contains(part)),
            "{reason}"
        );

        assert_eq!(check_target(&file).unwrap(), fs::canonicalize(&file).unwrap());
        check_target(&folder.path().join("new.json")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"content");
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_pipe_is_no_result_file() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe.json");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert_eq!(check_target(&pipe).unwrap_err().to_string(), "it is not a regular file");
    }
}
