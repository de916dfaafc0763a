//! Support for the `shm` provider: names in `/dev/shm`, free space there, and the choice of the copy
//! protocol.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directory of shared memory.
pub(crate) const DIRECTORY: &str = "/dev/shm";
const PREFIX: &str = "collectives-";
const ADDRESS: &str = "fi_shm://";

/// A unique name for a file of this process in [`DIRECTORY`]: `collectives-<pid namespace>-<pid>-<random>`.
pub(crate) fn new_name() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("{PREFIX}{}-{}-{random:016x}", pid_namespace().unwrap_or(0), std::process::id())
}

/// Returns the random number in a name from [`new_name`]; `None` for a name of another form.
pub(crate) fn number_in(name: &str) -> Option<u64> {
    let mut parts = name.strip_prefix(PREFIX)?.split('-');
    let (namespace, process, number) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit()) && !text.is_empty();
    let is_complete =
        is_number(namespace) && is_number(process) && number.len() == 16 && parts.next().is_none();
    if is_complete && number.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return u64::from_str_radix(number, 16).ok();
    }
    None
}

/// Returns an address for an endpoint of this process, with the name of a file in [`DIRECTORY`].
pub(crate) fn new_address() -> Option<CString> {
    CString::new(format!("{ADDRESS}{}", new_name())).ok()
}

/// True for an address in the form of [`new_address`]. libfabric maps the file named by an address, whatever
/// its content, and trusts the sizes in it.
pub(crate) fn is_address(address: &[u8]) -> bool {
    let name = address.strip_prefix(ADDRESS.as_bytes()).and_then(|name| name.split(|&byte| byte == 0).next());
    name.and_then(|name| std::str::from_utf8(name).ok()).and_then(number_in).is_some()
}

/// True for the address of an endpoint of this process.
pub(crate) fn is_of_this_process(address: &[u8]) -> bool {
    let own = format!("{PREFIX}{}-{}-", pid_namespace().unwrap_or(0), std::process::id());
    address.windows(own.len()).any(|part| part == own.as_bytes())
}

/// The file of an endpoint with this address.
fn file_of(address: &[u8]) -> Option<PathBuf> {
    let name = address.strip_prefix(ADDRESS.as_bytes())?.split(|&byte| byte == 0).next()?;
    Some(Path::new(DIRECTORY).join(std::str::from_utf8(name).ok()?))
}

/// Returns the files of endpoints with these addresses that this process has not mapped. Its own endpoints
/// are skipped: they need no mapping.
pub(crate) fn unmapped_files(addresses: &[Vec<u8>]) -> Vec<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // The kernel marks files with removed names.
    let file =
        |line| Some(Path::new(str::trim_end_matches(line, " (deleted)").get(str::find(line, '/')?..)?));
    let mapped: BTreeSet<&Path> = maps.lines().filter_map(file).collect();
    let others = addresses.iter().filter(|address| !is_of_this_process(address));
    others.filter_map(|address| file_of(address)).filter(|file| !mapped.contains(file.as_path())).collect()
}

/// Removes the name of the endpoint with this address. Its memory stays until no process has mapped it.
pub(crate) fn unlink_name(address: &[u8]) {
    if let Some(file) = file_of(address) {
        let _ = fs::remove_file(file);
    }
}

/// Removes files left in `/dev/shm` by killed processes of this user.
///
/// Only files with names from [`new_name`] and of this pid namespace: processes of other namespaces cannot be
/// checked.
pub(crate) fn remove_leftovers() {
    let Some(namespace) = pid_namespace() else { return };
    let own = format!("{PREFIX}{namespace}-");
    // SAFETY: the function has no preconditions.
    let user = unsafe { libc::geteuid() };
    for entry in fs::read_dir(DIRECTORY).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(&own)?.split('-').next()?.parse().ok());
        let Some(pid) = pid.filter(|&pid: &i32| pid > 0) else { continue };
        if has_exited(pid) && entry.metadata().is_ok_and(|metadata| metadata.uid() == user) {
            // Another process may have removed it first.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Largest size of an endpoint of `shm` in [`DIRECTORY`] (libfabric 1.17; 2.5 uses 13 MiB), and its size when
/// it is opened.
const WHOLE: u64 = 16 << 20;
const FIRST: u64 = 4 << 20;

/// Explains that libfabric has no `shm` here for lack of space in `/dev/shm`, with the remedy; none if there
/// is enough. libfabric wants space for an endpoint for each processor of the host.
#[must_use]
pub fn shm_shortage() -> Option<String> {
    // SAFETY: the function has no preconditions.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    let needed = WHOLE * u64::try_from(processors).unwrap_or(1);
    describe_shortage(
        &format!("libfabric's shm needs up to {} for the processors of this host", mebibyte_text(needed)),
        needed,
    )
}

/// Explains a lack of space for opening the endpoints of this host's ranks; none if there is enough. A write
/// there without space ends the process (SIGBUS).
pub(crate) fn shortage_before_open(ranks: usize) -> Option<String> {
    shortage_of_ranks(ranks, FIRST)
}

/// Explains the same after the endpoints are opened, with an estimate from this rank's endpoint at `address`.
pub(crate) fn shortage_after_open(ranks: usize, address: &[u8]) -> Option<String> {
    let metadata = fs::metadata(file_of(address)?).ok()?;
    shortage_of_ranks(ranks, metadata.len().saturating_sub(512 * metadata.blocks()))
}

/// Explains a lack of space for one more endpoint; none if there is enough.
pub(crate) fn shortage_of_endpoint() -> Option<String> {
    describe_shortage(&format!("an endpoint of shm needs up to {}", mebibyte_text(WHOLE)), WHOLE)
}

fn shortage_of_ranks(ranks: usize, each: u64) -> Option<String> {
    let needed = each.saturating_mul(ranks as u64);
    describe_shortage(&format!("the {ranks} ranks of this host may need {}", mebibyte_text(needed)), needed)
}

fn describe_shortage(who: &str, needed: u64) -> Option<String> {
    // SAFETY: the struct consists of numbers, zero is a value of them; the call fills it; the path is a text.
    let room = unsafe {
        let mut room: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(c"/dev/shm".as_ptr(), &raw mut room) == 0).then_some(room)
    }?;
    let (free, all) = (room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize);
    (free < needed).then(|| {
        format!(
            "{DIRECTORY} has {} free of {}, and {who}; make room there (containers: a larger --shm-size), or \
             choose tcp",
            mebibyte_text(free),
            mebibyte_text(all)
        )
    })
}

fn mebibyte_text(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

fn has_exited(pid: i32) -> bool {
    // SAFETY: signal 0 is not sent; it only asks whether the process exists.
    let result = unsafe { libc::kill(pid, 0) };
    if result == -1 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH) {
        return true;
    }
    // A zombie keeps its number until its parent waits for it. The state is the first thread's.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.contains("\nState:\tZ") && status.contains("\nThreads:\t1\n")
}

/// None without `/proc`.
fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|metadata| metadata.ino())
}

/// Identity of the shared memory that this process can reach: equal for two processes if they can use `shm`
/// together. Different in different pid namespaces, though they may share `/dev/shm`: `shm` looks up a peer's
/// pid in its own namespace, and would read and write another process's memory. Processes with a different
/// `name` or, without one, a different `NCCL_HOSTID` count as processes of different hosts.
pub(crate) fn host_identity(name: Option<&str>) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let folder = fs::metadata(Path::new(DIRECTORY)).map_or(0, |metadata| metadata.dev());
    // SAFETY: the function has no preconditions.
    let user = unsafe { libc::geteuid() };
    let name = name.map_or_else(|| std::env::var("NCCL_HOSTID").unwrap_or_default(), str::to_owned);
    let namespace = pid_namespace().unwrap_or(0);
    format!("{} {folder} {namespace} {user} {}", boot.trim(), name.trim().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_dead_processes_go_and_others_stay() {
        let dead = {
            let mut child = std::process::Command::new("true").spawn().unwrap();
            child.wait().unwrap();
            child.id()
        };
        // A zombie.
        let mut ended =
            std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        let status = format!("/proc/{}/status", ended.id());
        while !fs::read_to_string(&status).unwrap().contains("State:\tZ") {
            std::thread::yield_now();
        }
        let path = |pid: u32| {
            Path::new(DIRECTORY).join(format!("{PREFIX}{}-{pid}-0123456789abcdef", pid_namespace().unwrap()))
        };
        let foreign = Path::new(DIRECTORY).join(format!("{PREFIX}1-{dead}-0123456789abcdef"));
        let own = path(std::process::id());
        for file in [&path(dead), &path(ended.id()), &own, &foreign] {
            fs::write(file, "x").unwrap();
        }
        remove_leftovers();
        assert!(!path(dead).exists() && !path(ended.id()).exists());
        ended.wait().unwrap();
        assert!(own.exists() && foreign.exists());
        fs::remove_file(own).unwrap();
        fs::remove_file(foreign).unwrap();
    }

    #[test]
    fn there_is_no_room_for_more_endpoints_than_can_be_counted() {
        assert_eq!(shortage_before_open(1), None);
        // The bytes of the second wrap to none.
        for ranks in [usize::MAX, 1 << 42] {
            let problem = shortage_before_open(ranks).unwrap();
            assert!(problem.contains(&format!("the {ranks} ranks")), "{problem}");
        }
    }

    #[test]
    fn only_names_of_this_form_have_a_number() {
        let name = new_name();
        let number = number_in(&name).unwrap();
        assert!(name.ends_with(&format!("-{number:016x}")), "{name}");
        assert_eq!(number_in("collectives-1-2-00000000000000ff"), Some(255));
        for other in [
            "",
            "collectives-",
            "collectives-1-2-ff",
            "collectives-1--00000000000000ff",
            "collectives-1-2-00000000000000fg",
            "collectives-1-2-+0000000000000ff",
            "collectives-1-2-00000000000000ff-3",
            "collectives-1-../-00000000000000ff",
            "/dev/shm/collectives-1-2-00000000000000ff",
            "collectives-1-2-00000000000000ff\0",
        ] {
            assert_eq!(number_in(other), None, "{other}");
        }
    }

    #[test]
    fn addresses_differ_and_are_known_for_this_process_s() {
        assert_ne!(new_address(), new_address());
        assert!(is_address(new_address().unwrap().as_bytes()));
        assert!(!is_address(b"fi_shm://any-file\0") && !is_address(b"collectives-1-2-00000000000000ff"));
        assert!(is_of_this_process(new_address().unwrap().as_bytes()));
        assert!(!is_of_this_process(
            format!("fi_shm://{PREFIX}{}-1-0123456789abcdef", pid_namespace().unwrap()).as_bytes()
        ));
    }
}
