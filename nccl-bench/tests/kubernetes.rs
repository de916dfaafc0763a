//! The pods of an indexed Job as processes of this host, with the variables of Kubernetes and of the example
//! manifest.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../tests/port/mod.rs"]
mod port;

use std::process::{Child, Command, Output, Stdio};

use port::reserve_port;

const MANIFEST: &str = include_str!("../../docs/kubernetes.yaml");

/// The value of a key that the manifest has once.
fn only(key: &str) -> &'static str {
    let all = values(key);
    assert_eq!(all.len(), 1, "{key}");
    all[0]
}

/// The values of a key, in order, without comments.
fn values(key: &str) -> Vec<&'static str> {
    let lines = MANIFEST.lines().filter(|line| !line.starts_with('#'));
    let values = lines.filter_map(|line| {
        let (found, value) = line.trim_start().trim_start_matches("- ").split_once(": ")?;
        (found == key).then(|| value.split(" #").next().unwrap_or(value).trim())
    });
    values.collect()
}

/// Names and values of the container's environment.
fn environment() -> Vec<(&'static str, &'static str)> {
    let lines = MANIFEST.lines().filter_map(|line| line.trim_start().strip_prefix("- {name: "));
    lines.filter_map(|line| line.split('}').next()?.split_once(", value: ")).map(unquoted).collect()
}

fn unquoted((name, value): (&'static str, &'static str)) -> (&'static str, &'static str) {
    // Values without quotes would be numbers, which Kubernetes refuses.
    (name, value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap())
}

/// Pod `index`, with so much in its environment and nothing of this process' launcher.
fn pod(index: usize, arguments: &[&str], environment: &[(&str, &str)]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nccl-bench"));
    command.args(arguments).args("--backend fabric -t 1 -b 8 -e 8 -n 1".split(' '));
    command.env_clear();
    // Where libfabric may have to be looked for.
    let kept = ["PATH", "HOME", "LD_LIBRARY_PATH", "FABRIC_LIBRARY"];
    command.envs(std::env::vars_os().filter(|(name, _)| kept.iter().any(|kept| name == kept)));
    command.env("JOB_COMPLETION_INDEX", index.to_string()).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(pod: Child) -> (Output, String) {
    let output = pod.wait_with_output().unwrap();
    let text = [&output.stdout[..], &output.stderr].concat();
    (output, String::from_utf8(text).unwrap())
}

#[test]
fn the_pods_of_the_example_measure_together() {
    let names = values("name");
    let (service, job) = (names[0], names[1]);
    assert_eq!(only("completionMode"), "Indexed");
    assert_eq!((only("job-name"), only("subdomain")), (job, service));
    assert_eq!((only("completions"), only("clusterIP")), (only("parallelism"), "None"));
    let mut environment = environment();
    let value = |name| environment.iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!(value("NCCL_BENCH_SIZE"), only("completions"));
    // Without a cluster's DNS the first pod has another name.
    let (host, port) = value("NCCL_BENCH_ADDR").split_once(':').unwrap();
    assert_eq!(host, format!("{job}-0.{service}"));
    assert!(port.parse::<u16>().unwrap() > 0);
    let port = reserve_port();
    let address = format!("127.0.0.1:{port}");
    environment.push(("NCCL_BENCH_ADDR", &address));

    let command = only("command").strip_prefix("[nccl-bench, ").unwrap().strip_suffix(']').unwrap();
    let arguments: Vec<&str> = command.split(", ").collect();
    let pods: Vec<Child> =
        (0..only("completions").parse().unwrap()).map(|index| pod(index, &arguments, &environment)).collect();
    let mut outputs = pods.into_iter().map(ended);
    let (first, text) = outputs.next().unwrap();
    assert!(first.status.success(), "{text}");
    assert!(
        text.contains(&format!("# World: Kubernetes, 2 processes, TCP rendezvous at {address}")),
        "{text}"
    );
    assert!(text.contains("#  Rank  1 Group  0 Pid"), "{text}");
    for (output, text) in outputs {
        assert!(output.status.success() && text.is_empty(), "{text}");
    }
}

#[test]
fn a_pod_that_is_not_told_of_the_others_does_not_measure_itself() {
    for index in [0, 1] {
        let (output, text) = ended(pod(index, &["allreduce"], &[]));
        assert_eq!(output.status.code(), Some(2), "{text}");
        let pod = format!("pod {index} of an indexed Job");
        for part in [&*pod, "{name: NCCL_BENCH_SIZE, value: \"2\"}", "--world single"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    let (output, text) = ended(pod(0, &["allreduce"], &[("NCCL_BENCH_SIZE", "2")]));
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("{name: NCCL_BENCH_ADDR, value: \"JOB-0.SERVICE:29500\"}"), "{text}");
}

#[test]
fn a_pod_may_be_alone() {
    let size = [("NCCL_BENCH_SIZE", "1")];
    for (arguments, variables) in
        [(&["allreduce"][..], &size[..]), (&["allreduce", "--world", "single"], &[])]
    {
        let (output, text) = ended(pod(0, arguments, variables));
        assert!(output.status.success(), "{text}");
        assert!(text.contains("# World: one process"), "{text}");
    }
}
