//! The user's and this program's settings of NCCL.

use std::collections::HashMap;
use std::env;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;

pub(super) type Assignments = Vec<(&'static str, String)>;

static SET: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// Returns the variables set by this module in this process. They must not be passed to a program that
/// replaces it by `exec`, because the plugin and the log no longer exist there. They must not be recorded as
/// the user's either.
pub fn own_variables() -> Vec<&'static str> {
    SET.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sets variables of this process. Fails if the process has several threads.
pub(super) fn set_variables(variables: Assignments) -> anyhow::Result<()> {
    let threads = fs::read_dir("/proc/self/task").context("making a place for NCCL's log")?.count();
    anyhow::ensure!(
        variables.is_empty() || threads == 1,
        "this process has {threads} threads already, so variables can no longer be set"
    );
    for (name, value) in variables {
        // SAFETY: this thread is the only one, so nothing reads the environment meanwhile.
        unsafe { env::set_var(name, value) };
        SET.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
    Ok(())
}

pub(super) fn read_variable(name: &str) -> Option<String> {
    env::var(name).ok()
}

/// Returns NCCL's settings: variables of the environment, then the user's configuration file, then the
/// machine's.
pub(super) fn of_nccl(variable: &dyn Fn(&str) -> Option<String>) -> impl Fn(&str) -> Option<String> {
    let users = variable("NCCL_CONF_FILE")
        .filter(|path| !path.is_empty())
        .or_else(|| variable("HOME").map(|home| format!("{home}/.nccl.conf")));
    let files: Vec<_> =
        users.iter().map(String::as_str).chain(["/etc/nccl.conf"]).map(read_configuration).collect();
    move |name| variable(name).or_else(|| files.iter().find_map(|file| file.get(name).cloned()))
}

/// Reads the `NAME=value` lines of a configuration file of NCCL. The first line of a name counts.
fn read_configuration(path: impl AsRef<Path>) -> HashMap<String, String> {
    let mut text = Vec::new();
    // NCCL ignores missing and unreadable files.
    if File::open(path).and_then(|mut file| file.read_to_end(&mut text)).is_err() {
        return HashMap::new();
    }
    let mut settings = HashMap::new();
    for line in String::from_utf8_lossy(&text).lines().filter(|line| !line.starts_with('#')) {
        if let Some((name, value)) = line.split_once('=') {
            settings.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_comes_before_the_configuration_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("nccl.conf");
        fs::write(&file, "# NCCL_DEBUG=TRACE\nNCCL_DEBUG=INFO\nNCCL_DEBUG=WARN\nNCCL_DEBUG_FILE=/a=b\n")
            .unwrap();
        let path = file.to_str().unwrap().to_owned();
        let variable = |name: &str| match name {
            "NCCL_CONF_FILE" => Some(path.clone()),
            "NCCL_DEBUG_FILE" => Some("/mine".to_owned()),
            _ => None,
        };
        let found = of_nccl(&variable);
        assert_eq!(found("NCCL_DEBUG").as_deref(), Some("INFO"));
        assert_eq!(found("NCCL_DEBUG_FILE").as_deref(), Some("/mine"));
    }
}
