//! Provenance of a run: environment, system and time of rank 0's process.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// Prefixes of variables with an effect on the measurement: of NCCL and nccl-tests, CUDA, libfabric and UCX,
/// of the InfiniBand and RoCE libraries, and of the transports of Open MPI. Other variables of Open MPI
/// describe its processes, differ in each start, and include a session's key.
pub const PREFIXES: [&str; 13] = [
    "NCCL_",
    "CUDA_",
    "FI_",
    "FABRIC_",
    "UCX_",
    "IBV_",
    "MLX5_",
    "RDMAV_",
    "OMPI_MCA_btl",
    "OMPI_MCA_mtl",
    "OMPI_MCA_pml",
    "OMPI_MCA_coll",
    "MPIR_CVAR_",
];

/// Other such variables. They select the loaded libraries, and the devices visible in a container.
pub(crate) const NAMES: [&str; 3] = ["LD_LIBRARY_PATH", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES"];

/// Parts of names of variables with secret values.
pub(crate) const SECRET: [&str; 6] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL"];

/// Replacement of a secret value.
pub const LEFT_OUT: &str = "(left out)";

/// Returns the environment variables of this process with an effect on the measurement. Values that could be
/// secret, by the variable's name, are [`LEFT_OUT`]; invalid UTF-8 is replaced.
pub fn read_environment() -> BTreeMap<String, String> {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    choose_variables(std::env::vars_os().map(|(name, value)| (text(name), text(value))))
}

/// Selects variables, and hides secrets, for [`read_environment`].
pub(crate) fn choose_variables(
    variables: impl Iterator<Item = (String, String)>,
) -> BTreeMap<String, String> {
    let matters =
        |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&name);
    let shown = |(name, value): (String, String)| {
        let upper = name.to_ascii_uppercase();
        let secret = SECRET.iter().any(|part| upper.contains(part));
        (name, if secret { LEFT_OUT.to_owned() } else { value })
    };
    variables.filter(|(name, _)| matters(name)).map(shown).collect()
}

/// Returns the system: `Linux 6.8.0 x86_64` (uname).
pub fn describe_system() -> String {
    let found = rustix::system::uname();
    [found.sysname(), found.release(), found.machine()].map(|part| part.to_string_lossy()).join(" ")
}

/// Returns the time in UTC with milliseconds, as in RFC 3339: `2026-11-22T08:30:00.123Z`.
pub fn now_utc() -> String {
    format!("{:.3}", Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_matter_are_kept_and_secrets_are_not() {
        let variables = [
            ("NCCL_ALGO", "ring"),
            ("NCCL_TESTS_SPLIT", "MOD 2"),
            ("FI_PROVIDER", "efa"),
            ("NCCL_BENCH_KEY", "hunter2"),
            ("NCCL_NET_Token", "hunter2"),
            ("OMPI_MCA_pml", "ob1"),
            ("OMPI_MCA_orte_precondition_transports", "62dd587d1c6ed6da-a946d291d602f01f"),
            ("AWS_SECRET_ACCESS_KEY", "hunter2"),
            ("HOME", "/root"),
            ("LD_PRELOAD", "libnccl.so"),
            ("XNCCL_ALGO", "tree"),
        ];
        let found =
            choose_variables(variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())));
        let expected = [
            ("FI_PROVIDER", "efa"),
            ("LD_PRELOAD", "libnccl.so"),
            ("NCCL_ALGO", "ring"),
            ("NCCL_BENCH_KEY", "(left out)"),
            ("NCCL_NET_Token", "(left out)"),
            ("NCCL_TESTS_SPLIT", "MOD 2"),
            ("OMPI_MCA_pml", "ob1"),
        ];
        assert_eq!(
            found,
            expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        );
    }

    #[test]
    fn the_system_is_the_one_that_uname_names() {
        let uname = std::process::Command::new("uname").arg("-srm").output().unwrap();
        assert_eq!(describe_system(), String::from_utf8(uname.stdout).unwrap().trim());
    }

    #[test]
    fn the_time_is_rfc_3339_in_utc_with_milliseconds() {
        let text = now_utc();
        assert_eq!((text.len(), &text[23..]), (24, "Z"), "{text}");
        let age = Timestamp::now().duration_since(text.parse().unwrap());
        assert!((0..3600).contains(&age.as_secs()), "{text}");
    }
}
