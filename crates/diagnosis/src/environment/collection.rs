//! Variables of a process, of NCCL's files, and of a text before its submission.

use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

use semver::Version;

use super::conf;
use super::files::{find_named_files, is_output};
use super::parse::parse_submission;
use super::process::Process;
use super::setting::{Location, Setting};
use super::submission::Submission;
use super::words::is_output_of_env;
use crate::finding::{Evidence, Finding};
use crate::knowledge::texts::compose_finding;

/// First version with `NCCL_CONF_FILE`.
const CONF_FILE: Version = Version::new(2, 23, 4);
/// First version with plugins for the environment.
const PLUGIN: Version = Version::new(2, 28, 7);

/// Variables with their places.
#[derive(Clone, Debug, Default)]
pub struct Collection {
    /// The variables in effect, by name.
    pub settings: Vec<Setting>,
    /// Variables of files, overridden at another place.
    pub overridden: Vec<Setting>,
    /// Faults of the files.
    pub findings: Vec<Finding>,
    /// Sentences about unknown facts.
    pub unseen: Vec<String>,
    /// The files read.
    pub files: Vec<String>,
    /// True if unseen variables may be set, or some values are unknown.
    pub is_partial: bool,
    /// True for a measured job: its variables try values outside the knowledge of these checks.
    pub is_measured: bool,
    /// True for a job with libfabric between host buffers, without variables of other software.
    pub is_host_only: bool,
    /// Variables with a missing file, or a missing folder of the file.
    pub without_file: Vec<String>,
}

/// Returns the finding about carriage returns at the ends of lines of a shell script, or of a file with
/// variables.
fn find_carriage_returns(text: &str, file: &str) -> Option<Finding> {
    let is_script =
        text.starts_with("#!") || text.lines().any(|line| line.trim_start().starts_with("export "));
    let number = text.split('\n').position(|line| line.ends_with('\r'))?;
    (is_script || is_output_of_env(text)).then(|| Finding {
        evidence: vec![Evidence { line: Some(number as u64 + 1), ..Evidence::at_place(file, "") }],
        ..compose_finding("variable-carriage-return", &[("file", &file)])
    })
}

impl Collection {
    /// Collects the variables of a process and of NCCL's files in it. The environment overrides the user's
    /// file, and the user's file overrides `/etc/nccl.conf`.
    pub fn of_process(process: &Process, nccl: &Version) -> Self {
        let mut all = Self::default();
        let place = Location::without_line(&process.place);
        let own = process.variables.iter();
        all.add_settings(own.map(|(name, value)| Setting::new(name, value, place.clone())).collect());
        all.read_user_file(process, nccl);
        all.read_file(process, Path::new("/etc/nccl.conf"), nccl);
        all.look_for_plugin(process, nccl);
        if process.is_other {
            all.unseen.push(format!(
                "the {} shows the start of the process: variables set later by the program are missing",
                process.place
            ));
        }
        all.settings.sort_by(|one, other| one.name.cmp(&other.name));
        let missing =
            all.settings.iter().filter(|it| find_named_files(it).iter().any(|file| process.is_missing(file)));
        all.without_file = missing.map(|it| it.name.clone()).collect();
        all
    }

    /// Collects the variables in the output of `env`, a shell script, a command line or a Kubernetes
    /// manifest.
    pub fn of_text(text: &str, file: &str) -> Self {
        // A copy of /proc/PID/environ.
        let lines = text.replace('\0', "\n");
        let Submission { settings, overridden, mut unseen, mut is_partial, not_passed, .. } =
            parse_submission(&lines, file);
        if settings.is_empty() {
            unseen.push(format!("no variable of NCCL was recognised in {file}"));
            is_partial = true;
        }
        unseen.push("the files nccl.conf of the hosts that it will run on were not read".to_owned());
        unseen.extend(settings.iter().filter(|it| !find_named_files(it).is_empty()).map(|it| {
            let what = if is_output(&it.name) { "folder" } else { "file" };
            format!("the {what} of {}={} was not looked for: it must be on all hosts", it.name, it.value)
        }));
        let conf = settings.iter().find(|it| it.name == "NCCL_CONF_FILE" && !it.value.is_empty());
        unseen.extend(conf.map(|it| format!("{}, which NCCL_CONF_FILE names, was not read", it.value)));
        let findings =
            not_passed_on(&not_passed).into_iter().chain(find_carriage_returns(&lines, file)).collect();
        let files = vec![file.to_owned()];
        Self { settings, overridden, findings, unseen, files, is_partial, ..Self::default() }
    }

    /// Removes variables of NCCL, its plugins, CUDA and frameworks, for a job with libfabric between host
    /// buffers.
    pub fn keep_host_variables(&mut self) {
        let is_kept = |setting: &Setting| {
            ["FI_", "NCCL_BENCH_", "NCCL_TESTS_", "RDMAV_", "LD_"]
                .iter()
                .any(|it| setting.name.starts_with(it))
        };
        self.settings.retain(is_kept);
        self.overridden.retain(is_kept);
        self.without_file.clear();
        // They are about files for NCCL.
        self.findings.clear();
        self.is_host_only = true;
    }

    /// Adds variables not set yet.
    fn add_settings(&mut self, settings: Vec<Setting>) {
        for setting in settings {
            let is_set = self.settings.iter().any(|own| own.name == setting.name);
            if is_set { &mut self.overridden } else { &mut self.settings }.push(setting);
        }
    }

    fn read_user_file(&mut self, process: &Process, nccl: &Version) {
        let named = process.value("NCCL_CONF_FILE").filter(|file| !file.is_empty() && *nccl >= CONF_FILE);
        let home = process.home.as_ref().map(|home| home.join(".nccl.conf"));
        let Some(named) = named else {
            if let Some(home) = home {
                self.read_file(process, &home, nccl);
            }
            return;
        };
        if !self.read_file(process, Path::new(named), nccl) {
            let is_home = named.starts_with('~');
            let id = if is_home { "nccl-conf-file-missing/home" } else { "nccl-conf-file-missing" };
            let finding = compose_finding(id, &[("file", &named)]);
            self.findings
                .push(finding.with_evidence(process.place.clone(), format!("NCCL_CONF_FILE={named}")));
        }
        if let Some(home) = home.filter(|home| process.resolve_path(home).exists()) {
            self.findings.push(compose_finding("nccl-conf-home-skipped", &[("file", &home.display())]));
        }
    }

    /// Reads a file. Returns false for an unreadable file.
    fn read_file(&mut self, process: &Process, path: &Path, nccl: &Version) -> bool {
        let shown = path.display().to_string();
        match fs::read(process.resolve_path(path)) {
            Ok(bytes) => {
                let conf = conf::parse_conf(&String::from_utf8_lossy(&bytes), &shown, nccl);
                self.add_settings(conf.settings);
                self.findings.extend(conf.findings);
                self.files.push(shown);
                true
            }
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    self.unseen.push(format!("{shown} could not be read: {error}"));
                }
                false
            }
        }
    }

    /// Looks for a plugin that answers in the place of the environment.
    fn look_for_plugin(&mut self, process: &Process, nccl: &Version) {
        if *nccl < PLUGIN {
            return;
        }
        let found = match process.value("NCCL_ENV_PLUGIN") {
            Some(name) if name.eq_ignore_ascii_case("none") => None,
            Some(name) => Some(format!("NCCL_ENV_PLUGIN={name}")),
            None => self.find_plugin(process),
        };
        if let Some(found) = found {
            self.unseen.push(format!(
                "{found} names an environment plugin. The plugin may give NCCL other values; only NCCL's own \
                 answer shows them"
            ));
        }
    }

    fn find_plugin(&self, process: &Process) -> Option<String> {
        let paths = self.settings.iter().find(|it| it.name == "LD_LIBRARY_PATH");
        let own = paths.map(|paths| paths.value.split(':').filter(|path| path.starts_with('/')).collect());
        let own: Vec<&str> = own.unwrap_or_default();
        let system = ["/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
        let mut files = own.into_iter().chain(system).map(|folder| Path::new(folder).join("libnccl-env.so"));
        files.find(|file| process.resolve_path(file).exists()).map(|file| file.display().to_string())
    }
}

/// Returns a finding about variables of an MPIJob outside the ranks' environment.
fn not_passed_on(settings: &[Setting]) -> Option<Finding> {
    let first = settings.first()?;
    let names: Vec<&str> = settings.iter().map(|setting| setting.name.as_str()).collect();
    let values: [(&str, &dyn Display); 2] =
        [("names", &names.join(", ")), ("first", &first.cite_setting().text)];
    Some(Finding {
        evidence: settings.iter().map(Setting::cite_setting).collect(),
        ..compose_finding("mpi-job-env-not-passed", &values)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(folder: &Path, variables: &[(&str, &str)]) -> Process {
        let block: Vec<u8> =
            variables.iter().flat_map(|(name, value)| format!("{name}={value}\0").into_bytes()).collect();
        Process {
            root: folder.to_owned(),
            folder: folder.to_owned(),
            ..Process::from_block(&block, "environment")
        }
    }

    fn shown(collection: &Collection) -> Vec<String> {
        collection.settings.iter().map(|it| format!("{}={} {}", it.name, it.value, it.place)).collect()
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for path in ["etc", "home/u"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        fs::write(folder.path().join("etc/nccl.conf"), "NCCL_DEBUG=WARN\nNCCL_NET=IB\nNCCL_ALGO=Ring\n")
            .unwrap();
        fs::write(folder.path().join("home/u/.nccl.conf"), "NCCL_NET=Socket\nNCCL_PROTO=LL\n").unwrap();
        fs::write(folder.path().join("my.conf"), "NCCL_PROTO=Simple\n").unwrap();
        folder
    }

    #[test]
    fn the_environment_is_before_the_user_s_file_and_that_before_the_system_s() {
        let folder = folder();
        let process = process(folder.path(), &[("HOME", "/home/u"), ("NCCL_DEBUG", "INFO"), ("SECRET", "x")]);
        let all = Collection::of_process(&process, &Version::new(2, 28, 9));
        assert_eq!(
            shown(&all),
            [
                "NCCL_ALGO=Ring /etc/nccl.conf:3",
                "NCCL_DEBUG=INFO environment",
                "NCCL_NET=Socket /home/u/.nccl.conf:1",
                "NCCL_PROTO=LL /home/u/.nccl.conf:2"
            ]
        );
        let overridden: Vec<_> = all.overridden.iter().map(|it| it.place.to_string()).collect();
        assert_eq!(overridden, ["/etc/nccl.conf:1", "/etc/nccl.conf:2"]);
        assert!(all.findings.is_empty() && all.unseen.is_empty(), "{all:?}");
    }

    #[test]
    fn nccl_conf_file_replaces_the_user_s_file_since_2_23() {
        let folder = folder();
        let variables = [("HOME", "/home/u"), ("NCCL_CONF_FILE", "my.conf")];
        let process = process(folder.path(), &variables);
        let new = Collection::of_process(&process, &Version::new(2, 23, 4));
        assert!(shown(&new).contains(&"NCCL_PROTO=Simple my.conf:1".to_owned()), "{:?}", shown(&new));
        assert!(shown(&new).contains(&"NCCL_NET=IB /etc/nccl.conf:2".to_owned()));
        let rules: Vec<_> = new.findings.iter().map(|finding| finding.rule.as_str()).collect();
        assert_eq!(rules, ["nccl-conf-home-skipped"]);
        let old = Collection::of_process(&process, &Version::new(2, 22, 3));
        assert!(shown(&old).contains(&"NCCL_PROTO=LL /home/u/.nccl.conf:2".to_owned()));
    }

    #[test]
    fn a_file_with_a_tilde_is_told() {
        let folder = folder();
        let process = process(folder.path(), &[("NCCL_CONF_FILE", "~/my.conf")]);
        let all = Collection::of_process(&process, &Version::new(2, 28, 9));
        assert_eq!(all.findings[0].rule, "nccl-conf-file-missing");
        assert!(all.findings[0].cause.as_ref().unwrap().contains('~'));
    }

    #[test]
    fn a_plugin_for_the_environment_is_told_where_nccl_loads_it() {
        let folder = folder();
        let version = Version::new(2, 28, 9);
        let with = |variables: &[(&str, &str)], version: &Version| {
            Collection::of_process(&process(folder.path(), variables), version).unseen
        };
        assert!(with(&[("NCCL_ENV_PLUGIN", "site")], &version)[0].contains("NCCL_ENV_PLUGIN=site"));
        assert!(with(&[("NCCL_ENV_PLUGIN", "none")], &version).is_empty());
        assert!(with(&[("NCCL_ENV_PLUGIN", "site")], &Version::new(2, 28, 3)).is_empty());
        fs::create_dir_all(folder.path().join("opt/lib")).unwrap();
        fs::write(folder.path().join("opt/lib/libnccl-env.so"), "").unwrap();
        let unseen = with(&[("LD_LIBRARY_PATH", "/nowhere:/opt/lib")], &version);
        assert!(unseen[0].contains("/opt/lib/libnccl-env.so"), "{unseen:?}");
    }

    #[test]
    fn secrets_are_not_kept() {
        let folder = folder();
        let process = process(folder.path(), &[("NCCL_PSK", "hush-hush"), ("AWS_TOKEN", "hush-hush")]);
        let all = Collection::of_process(&process, &Version::new(2, 32, 6));
        assert!(!format!("{all:?}").contains("hush"), "{all:?}");
        assert!(all.settings.iter().any(|it| it.name == "NCCL_PSK"));
    }

    #[test]
    fn files_that_are_not_there_are_told() {
        let folder = folder();
        fs::write(folder.path().join("topo.xml"), "").unwrap();
        let is_missing = |name: &str, value: &str| {
            let process = process(folder.path(), &[(name, value)]);
            let missing = Collection::of_process(&process, &Version::new(2, 28, 9)).without_file;
            assert!(missing.is_empty() || missing == [name], "{missing:?}");
            !missing.is_empty()
        };
        for (name, value, expected) in [
            ("NCCL_TOPO_FILE", "/nope.xml", true),
            ("NCCL_TOPO_FILE", "/topo.xml", false),
            ("NCCL_TOPO_FILE", "topo.xml", false),
            ("NCCL_NET_PLUGIN", "/opt/nope.so", true),
            ("NCCL_NET_PLUGIN", "/topo.xml", false),
            ("NCCL_NET_PLUGIN", "ofi,/opt/nope.so", true),
            // The dynamic loader searches these.
            ("NCCL_NET_PLUGIN", "ofi", false),
            ("NCCL_TUNER_PLUGIN", "libnope.so", false),
            ("NCCL_TUNER_PLUGIN", "/opt/nope.so", true),
        ] {
            assert_eq!(is_missing(name, value), expected, "{name}={value}");
        }
        let text = Collection::of_text("NCCL_TOPO_FILE=/nope.xml\n", "job.env");
        assert!(text.without_file.is_empty());
        assert!(
            text.unseen.iter().any(|text| text.contains("/nope.xml was not looked for")),
            "{:?}",
            text.unseen
        );
    }

    #[test]
    fn processes_are_read_by_their_number() {
        let own = Process::other_process(std::process::id()).unwrap();
        assert!(own.root.starts_with(format!("/proc/{}", std::process::id())));
        let error = Process::other_process(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("no such process"), "{error}");
    }
}
