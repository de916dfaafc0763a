//! Variables in a text that is about to be submitted: the output of `env`, a shell script, a command line of mpirun, srun
//! or docker, a Dockerfile, a Kubernetes manifest, JSON, Python.

use std::sync::LazyLock;

use regex::Regex;

use super::setting::{Place, Setting, is_collected};

/// A word that may be the name of a variable.
static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[A-Za-z_][A-Za-z0-9_]*").ok());

/// Options and commands before a name that is followed by a space and the value.
const BEFORE_PAIR: [&str; 6] = ["-genv", "-env", "--genv", "--env", "ENV", "setenv"];
/// Options before a name whose value comes from the environment.
const BEFORE_NAME: [&str; 5] = ["-x", "-genvlist", "-e", "--env", "-envlist"];

/// Variables of a text.
#[derive(Debug, Default)]
pub(super) struct Submission {
    pub settings: Vec<Setting>,
    pub overridden: Vec<Setting>,
    pub unseen: Vec<String>,
}

/// Reads a text. A variable that is set twice has the last value.
pub(super) fn parse(text: &str, file: &str) -> Submission {
    let mut all = Submission::default();
    let mut pending: Option<(String, Place)> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let place = Place { name: file.to_owned(), line: Some(number) };
        let trimmed = line.trim();
        if trimmed.starts_with('#') && !trimmed.starts_with("#SBATCH") && !trimmed.starts_with("#PBS")
            || trimmed.starts_with("//")
        {
            continue;
        }
        if let Some((name, at)) = pending.take() {
            match key(trimmed, "value") {
                Some(value) => all.set(&name, &scalar(value), at),
                None if key(trimmed, "valueFrom").is_some() => {
                    all.unseen.push(format!("{name} ({at}) takes its value from another object"));
                }
                None => all.unseen.push(format!("{name} ({at}) has no value in the next line")),
            }
        }
        all.scan(line, &place, &mut pending);
    }
    if let Some((name, at)) = pending {
        all.unseen.push(format!("{name} ({at}) has no value"));
    }
    all.settings.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

impl Submission {
    /// Takes the variables of a line; `pending` becomes the name of a list entry whose value follows.
    fn scan(&mut self, line: &str, place: &Place, pending: &mut Option<(String, Place)>) {
        let Some(pattern) = NAME.as_ref() else { return };
        let mut from = 0;
        while let Some(found) = pattern.find_at(line, from) {
            from = found.end();
            let (before, name, after) = (&line[..found.start()], found.as_str(), &line[found.end()..]);
            if !is_collected(name) || before.ends_with(['$', '{', '/', '.', '%']) && !before.ends_with("- {")
            {
                continue;
            }
            let last = before.split_whitespace().last().unwrap_or_default();
            let is_entry = before.trim_end_matches(['"', '\'', ' ']).ends_with("name:");
            if is_entry {
                match after.split_once("value:") {
                    Some((_, value)) => {
                        self.set(name, &scalar(value.trim_end_matches(['}', ' '])), place.clone())
                    }
                    None => *pending = Some((name.to_owned(), place.clone())),
                }
            } else if last == "unset" {
                self.settings.retain(|setting| setting.name != name);
            } else if let Some(value) = assigned(line, before, after) {
                self.set(name, &value, place.clone());
                from = line.len() - after.len() + consumed(after, &value);
            } else if BEFORE_PAIR.contains(&last) && after.starts_with(' ') && !after.trim().is_empty() {
                self.set(name, &word(after.trim_start()), place.clone());
            } else if BEFORE_NAME.contains(&last) {
                self.unseen
                    .push(format!("{name} ({place}) takes its value from the environment of the launcher"));
            }
        }
    }

    fn set(&mut self, name: &str, value: &str, place: Place) {
        if value.contains('$') || value.contains('`') || value.contains("{{") {
            self.unseen.push(format!("{name} ({place}) is computed when the text is used"));
            return;
        }
        let setting = Setting::new(name, value, place);
        match self.settings.iter_mut().find(|own| own.name == name) {
            Some(own) if own.value == setting.value => {}
            Some(own) => self.overridden.push(std::mem::replace(own, setting)),
            None => self.settings.push(setting),
        }
    }
}

/// The value behind a name: `=value`, `: value` of a mapping, `"] = "value"` of Python.
fn assigned(line: &str, before: &str, after: &str) -> Option<String> {
    if let Some(rest) = after.strip_prefix('=') {
        let is_output_of_env = before.is_empty() && !line.contains([' ', '\t']);
        let is_list = before.contains("--export");
        return Some(match () {
            () if is_output_of_env => unquoted(rest),
            () if is_list => word(rest.split(',').next().unwrap_or_default()),
            // The quote is that of the whole option: -x "NAME=value".
            () if before.ends_with(['"', '\'']) => {
                let quote = if before.ends_with('"') { '"' } else { '\'' };
                rest.split(quote).next().unwrap_or_default().to_owned()
            }
            () => word(rest),
        });
    }
    let quote = before.chars().last().filter(|last| ['"', '\''].contains(last));
    let rest = match quote {
        Some(quote) => after.strip_prefix(quote)?,
        None => after,
    };
    if let Some(rest) = rest.strip_prefix(']') {
        let value = rest.trim_start().strip_prefix('=')?.trim_start();
        return value.starts_with(['"', '\'']).then(|| word(value));
    }
    let is_key =
        matches!(before.trim(), "" | "-" | "{" | "\"" | "'") || before.trim_end().ends_with([',', '{', '"']);
    let value = rest
        .strip_prefix(':')
        .filter(|value| is_key && (value.starts_with(' ') || value.starts_with('"')))?;
    Some(scalar(value.trim_end().trim_end_matches(['}', ','])))
}

/// Length of the text that a value was read from, at least.
fn consumed(after: &str, value: &str) -> usize {
    after.find(value).map_or(0, |start| start + value.len()).min(after.len())
}

/// The value of a key, at the beginning of a line of YAML.
fn key<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.strip_prefix(name)?.strip_prefix(':')
}

/// A scalar of YAML or JSON, without quotes and comment.
fn scalar(text: &str) -> String {
    let text = text.trim();
    for quote in ['"', '\''] {
        if let Some(rest) = text.strip_prefix(quote) {
            return rest.split(quote).next().unwrap_or_default().to_owned();
        }
    }
    text.split(" #").next().unwrap_or_default().trim().trim_end_matches(',').to_owned()
}

/// A word of a shell, without quotes.
fn word(text: &str) -> String {
    let mut value = String::new();
    let mut quote = None;
    for letter in text.chars() {
        match quote {
            Some(open) if letter == open => quote = None,
            Some(_) => value.push(letter),
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if letter.is_whitespace() || [';', '&', '|', ')', '\\', '<', '>'].contains(&letter) => break,
            None => value.push(letter),
        }
    }
    value
}

fn unquoted(text: &str) -> String {
    for quote in ['"', '\''] {
        if let Some(inside) = text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return inside.to_owned();
        }
    }
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<String> {
        let all = parse(text, "f");
        all.settings.iter().map(|it| format!("{}={}", it.name, it.value)).collect()
    }

    #[test]
    fn the_output_of_env_is_read() {
        let text = "PATH=/bin\nNCCL_ALGO=ring;allreduce:tree\nNCCL_SOCKET_IFNAME==eth0,eth1\nAWS_SECRET_ACCESS_KEY=x\nNCCL_IB_HCA=^mlx5_1:1\n";
        assert_eq!(
            pairs(text),
            ["NCCL_ALGO=ring;allreduce:tree", "NCCL_IB_HCA=^mlx5_1:1", "NCCL_SOCKET_IFNAME==eth0,eth1"]
        );
    }

    #[test]
    fn shell_scripts_and_launchers_are_read() {
        for (line, expected) in [
            ("export NCCL_DEBUG=INFO # for now", vec!["NCCL_DEBUG=INFO"]),
            ("  export NCCL_ALGO=\"ring;allreduce:tree\"; train", vec!["NCCL_ALGO=ring;allreduce:tree"]),
            (
                "NCCL_DEBUG=INFO NCCL_NET='AWS Libfabric' ./train",
                vec!["NCCL_DEBUG=INFO", "NCCL_NET=AWS Libfabric"],
            ),
            (
                "mpirun -np 16 -x NCCL_DEBUG=INFO -x FI_PROVIDER=efa \\",
                vec!["FI_PROVIDER=efa", "NCCL_DEBUG=INFO"],
            ),
            ("  -x NCCL_BUFFSIZE=8388608 \\", vec!["NCCL_BUFFSIZE=8388608"]),
            ("mpiexec -genv NCCL_DEBUG WARN ./a", vec!["NCCL_DEBUG=WARN"]),
            (
                "#SBATCH --export=ALL,NCCL_DEBUG=INFO,FI_PROVIDER=efa",
                vec!["FI_PROVIDER=efa", "NCCL_DEBUG=INFO"],
            ),
            (
                "docker run -e NCCL_DEBUG=INFO -e \"NCCL_NET=AWS Libfabric\" image",
                vec!["NCCL_DEBUG=INFO", "NCCL_NET=AWS Libfabric"],
            ),
            ("ENV NCCL_DEBUG INFO", vec!["NCCL_DEBUG=INFO"]),
            ("# export NCCL_DEBUG=INFO", vec![]),
            ("echo $NCCL_DEBUG ${NCCL_NET:-x}", vec![]),
            ("os.environ[\"NCCL_DEBUG\"] = \"INFO\"", vec!["NCCL_DEBUG=INFO"]),
            (
                "{\"NCCL_DEBUG\": \"INFO\", \"NCCL_NVLS_ENABLE\": 0}",
                vec!["NCCL_DEBUG=INFO", "NCCL_NVLS_ENABLE=0"],
            ),
            ("  NCCL_DEBUG: INFO  # YAML", vec!["NCCL_DEBUG=INFO"]),
            ("see NCCL_DEBUG: it is a variable", vec![]),
        ] {
            assert_eq!(pairs(line), expected, "{line}");
        }
    }

    #[test]
    fn manifests_of_kubernetes_are_read() {
        let text = r#"
          env:
          - name: NCCL_SOCKET_IFNAME
            value: "eth0,en"
          - name: NCCL_BUFFSIZE
            value: '2097152'
          - name: API_TOKEN
            value: hush
          - name: NCCL_HOSTID
            valueFrom:
              fieldRef: {fieldPath: spec.nodeName}
          - {name: FI_PROVIDER, value: efa}
          - name: NCCL_DEBUG
            value: INFO
        "#;
        let all = parse(text, "job.yaml");
        let shown: Vec<_> =
            all.settings.iter().map(|it| format!("{}={} {}", it.name, it.value, it.place)).collect();
        assert_eq!(
            shown,
            [
                "FI_PROVIDER=efa job.yaml:12",
                "NCCL_BUFFSIZE=2097152 job.yaml:5",
                "NCCL_DEBUG=INFO job.yaml:13",
                "NCCL_SOCKET_IFNAME=eth0,en job.yaml:3"
            ]
        );
        assert_eq!(all.unseen, ["NCCL_HOSTID (job.yaml:9) takes its value from another object"]);
        assert!(!format!("{all:?}").contains("hush"));
    }

    #[test]
    fn the_last_value_counts_and_computed_ones_are_told() {
        let all = parse(
            "export NCCL_DEBUG=INFO\nexport NCCL_DEBUG=WARN\nexport NCCL_NET=$NET\nunset NCCL_ALGO\nmpirun -x NCCL_PROTO\n",
            "f",
        );
        assert_eq!(all.settings.len(), 1);
        assert_eq!((all.settings[0].value.as_str(), all.overridden[0].value.as_str()), ("WARN", "INFO"));
        assert_eq!(all.unseen.len(), 2, "{:?}", all.unseen);
        assert!(all.unseen[0].contains("NCCL_NET (f:3) is computed"), "{:?}", all.unseen);
        assert!(all.unseen[1].contains("NCCL_PROTO (f:5) takes its value"), "{:?}", all.unseen);
        assert!(pairs("export NCCL_ALGO=Ring\nunset NCCL_ALGO").is_empty());
    }

    #[test]
    fn hostile_text_does_not_panic() {
        for text in [
            "NCCL_=",
            "NCCL_A=\"",
            "- name: NCCL_X",
            "ü NCCL_ü=ü",
            "\"NCCL_A\": ",
            "NCCL_A]=",
            "name: NCCL_A value:",
            "-x NCCL_A",
        ] {
            parse(text, "f");
        }
    }
}
