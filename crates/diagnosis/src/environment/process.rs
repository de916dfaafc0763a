//! The environment of this process or of another one.

use std::path::{Path, PathBuf};
use std::{env, fs, io};

use super::setting::is_collected;

/// The environment of a process.
#[derive(Clone, Debug)]
pub struct Process {
    pub(super) variables: Vec<(String, String)>,
    pub(super) home: Option<PathBuf>,
    pub(super) root: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) place: String,
    pub(super) is_other: bool,
}

impl Process {
    /// Returns this process.
    pub fn this_process() -> Self {
        let text = |value: std::ffi::OsString| value.to_string_lossy().into_owned();
        let variables = env::vars_os().map(|(name, value)| (text(name), text(value)));
        Self {
            variables: variables.filter(|(name, _)| is_collected(name)).collect(),
            home: env::var_os("HOME").map(PathBuf::from),
            root: PathBuf::from("/"),
            folder: PathBuf::from("."),
            place: "environment".to_owned(),
            is_other: false,
        }
    }

    /// Returns another process of this host, by its number.
    ///
    /// # Errors
    /// An error if no such process exists, or it belongs to another user.
    pub fn other_process(pid: u32) -> io::Result<Self> {
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let bytes = fs::read(proc.join("environ")).map_err(|error| {
            let help = match error.kind() {
                io::ErrorKind::NotFound => "there is no such process on this host",
                io::ErrorKind::PermissionDenied => {
                    let status =
                        |folder: &Path| fs::read_to_string(folder.join("status")).unwrap_or_default();
                    explain_refusal(&status(Path::new("/proc/self")), &status(&proc))
                }
                _ => "it cannot be read",
            };
            io::Error::new(error.kind(), format!("environment of process {pid}: {help} ({error})"))
        })?;
        Ok(Self {
            root: proc.join("root"),
            folder: proc.join("cwd"),
            is_other: true,
            ..Self::from_block(&bytes, &format!("environment of process {pid}"))
        })
    }

    /// Creates a process from its block of `NAME=VALUE`, each with a NUL at its end.
    pub(super) fn from_block(bytes: &[u8], place: &str) -> Self {
        let entries = bytes.split(|&byte| byte == 0).map(String::from_utf8_lossy);
        let pairs = entries.filter_map(|entry| {
            let (name, value) = entry.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        });
        let (mut variables, mut home) = (Vec::new(), None);
        for (name, value) in pairs {
            match name.as_str() {
                "HOME" => home = Some(PathBuf::from(value)),
                _ if is_collected(&name) => variables.push((name, value)),
                _ => {}
            }
        }
        Self {
            variables,
            home,
            root: PathBuf::from("/"),
            folder: PathBuf::from("."),
            place: place.to_owned(),
            is_other: false,
        }
    }

    /// Returns the root of the process's file system.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the value of a variable.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.variables.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Returns the path of a file named by the process.
    pub(super) fn resolve_path(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/") {
            Ok(inside) => self.root.join(inside),
            Err(_) => self.folder.join(path),
        }
    }

    /// Returns true for a missing file, false if this is unknown.
    pub(super) fn is_missing(&self, path: &Path) -> bool {
        fs::metadata(self.resolve_path(path)).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    }
}

/// Returns the reason why the kernel refuses the environment of a process, by the files `status` of both.
fn explain_refusal(own: &str, other: &str) -> &'static str {
    /// The number of `CAP_SYS_PTRACE`.
    const PTRACE: u32 = 19;
    let field = |status: &'static str, own: &str| {
        let line = own.lines().find_map(|line| line.strip_prefix(status))?;
        line.split_whitespace().nth(usize::from(status == "Uid:")).map(str::to_owned)
    };
    let capabilities = field("CapEff:", own).and_then(|text| u64::from_str_radix(&text, 16).ok());
    let may_trace = capabilities.is_some_and(|all| all >> PTRACE & 1 == 1);
    let user = field("Uid:", own);
    match user.as_deref() {
        Some("0") if !may_trace => {
            "root has no CAP_SYS_PTRACE here, as in most containers: run inside the container of that \
             process, as its user, or add the capability (docker run --cap-add SYS_PTRACE; in a pod \
             securityContext.capabilities.add), or run as root of the host"
        }
        Some("0") => {
            "it is in another user namespace, or a security module (AppArmor, SELinux) forbids it: run as \
             root of the host, or inside the container of that process"
        }
        Some(user) if field("Uid:", other).as_deref() == Some(user) => {
            "it has privileges that this process lacks: run as root"
        }
        _ => "it belongs to another user: run as that user, or as root",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_process_tells_what_forbids_it() {
        let status = |uid: u32, capabilities: &str| {
            format!("Name:\tx\nUid:\t1000\t{uid}\t{uid}\t{uid}\nCapEff:\t{capabilities}\n")
        };
        let (all, docker, none) = ("000001ffffffffff", "00000000a80425fb", "0000000000000000");
        for (own, other, words) in [
            (status(0, docker), status(0, all), "has no CAP_SYS_PTRACE"),
            (status(0, all), status(0, all), "another user namespace"),
            (status(7, none), status(7, all), "run as root"),
            (status(7, none), status(0, all), "belongs to another user"),
            (String::new(), String::new(), "belongs to another user"),
        ] {
            assert!(
                explain_refusal(&own, &other).contains(words),
                "{own} {other}: {}",
                explain_refusal(&own, &other)
            );
        }
    }
}
