//! Launchers of MPI among the ancestors of this process.

use std::fs;
use std::path::Path;

/// Names of processes that start the ranks of an MPI job on a host.
const LAUNCHERS: &[&str] = &[
    "mpirun",
    "mpiexec",
    "orterun",
    "orted",
    "prterun",
    "prted",
    "mpiexec.hydra",
    "mpirun.openmpi",
    "mpiexec.openmpi",
    "mpirun.mpich",
    "mpiexec.mpich",
    "hydra_pmi_proxy",
];

/// Number of examined ancestors: a launcher, a shell, and the two processes of `sudo`.
const MOST: usize = 4;

/// Returns the name of the nearest ancestor of this process that is a launcher of MPI. `proc` is `/proc`.
pub(super) fn find_launcher(proc: &Path) -> Option<String> {
    let mut process = "self".to_owned();
    for number in 0..=MOST {
        // `4242 (mpirun) S 4241 ...`; a name may have spaces and parentheses.
        let status = fs::read_to_string(proc.join(&process).join("stat")).ok()?;
        let (before, after) = status.rsplit_once(')')?;
        let (_, name) = before.split_once('(')?;
        // The kernel keeps 15 letters of a name: all of these.
        if number > 0 && LAUNCHERS.contains(&name) {
            return Some(name.to_owned());
        }
        after.split_whitespace().nth(1)?.clone_into(&mut process);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_launcher_is_found_and_a_distant_one_is_not() {
        let proc = tempfile::tempdir().unwrap();
        let process = |id: &str, name: &str, parent: &str| {
            fs::create_dir(proc.path().join(id)).unwrap();
            fs::write(proc.path().join(id).join("stat"), format!("{id} ({name}) S {parent} 1 1 0")).unwrap();
        };
        process("self", "mpirun", "9");
        process("9", "sh (deleted) x", "8");
        process("8", "sudo", "7");
        assert_eq!(find_launcher(proc.path()), None);
        process("7", "sudo", "6");
        process("6", "hydra_pmi_proxy", "1");
        assert_eq!(find_launcher(proc.path()).as_deref(), Some("hydra_pmi_proxy"));
        fs::write(proc.path().join("7/stat"), "7 (mpiexec.openmpi) S 1").unwrap();
        assert_eq!(find_launcher(proc.path()).as_deref(), Some("mpiexec.openmpi"));
        // Five processes away.
        fs::write(proc.path().join("7/stat"), "7 (bash) S 6").unwrap();
        fs::write(proc.path().join("6/stat"), "6 (bash) S 5").unwrap();
        process("5", "mpirun", "1");
        assert_eq!(find_launcher(proc.path()), None);
    }
}
