//! `nccl-bench doctor env` as a process.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod program;

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use program::{err, nccl_bench, out, run};
use serde_json::Value;

/// A command without the machine's libraries and variables.
fn command(arguments: &str) -> Command {
    let mut command = nccl_bench(arguments);
    for (name, _) in std::env::vars() {
        if ["FI_", "OFI_", "LD_LIBRARY_PATH", "TORCH_NCCL", "UCX_", "CUDA_"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        {
            command.env_remove(name);
        }
    }
    command.env("NCCL_LIBRARY", "/nowhere/libnccl.so.2").env("HOME", "/nowhere");
    command
}

fn json(output: &Output) -> Value {
    let text = out(output);
    let document: Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {}", err(output)));
    document.pointer("/examinations/0").cloned().unwrap_or(document)
}

fn rules(examination: &Value) -> Vec<String> {
    let findings = examination["findings"].as_array().unwrap().iter();
    findings.map(|finding| finding["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_is_about_to_be_submitted_is_judged() {
    let mut child =
        command("doctor env --file - --nccl 2.27.3 --plugin 1.16.2 --platform p4d.24xlarge --json")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
    let script =
        "mpirun -x NCCL_ALGO=Tree -x FI_PROVIDER=efa -x NCCL_BUFFSIZE=2097152 -x DB_KEY=hush ./train\n";
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", out(&output));
    let examination = json(&output);
    assert_eq!(
        rules(&examination),
        ["algo-without-ring", "buffsize-overrides-the-plugin", "fi-provider-efa"]
    );
    assert!(!out(&output).contains("hush"));
}

#[test]
fn the_own_environment_is_judged_with_the_table_where_nccl_is_missing() {
    let output = command("doctor env --json --world single")
        .env("NCCL_SOCKET_IFACE", "eth0")
        .env("NCCL_SHM_DISABLE", "1")
        .output()
        .unwrap();
    let examination = json(&output);
    assert_eq!(output.status.code(), Some(1), "{}", out(&output));
    assert_eq!(rules(&examination), ["shm-disabled", "variable-misspelt"]);
    let unseen = examination["unseen"].to_string();
    assert!(unseen.contains("NCCL was not loaded") && unseen.contains("--nccl VERSION"), "{unseen}");
}

#[test]
fn a_running_process_is_judged() {
    let mut sleeper =
        Command::new("sleep").arg("600").env("NCCL_P2P_DISABLE", "1").stdout(Stdio::null()).spawn().unwrap();
    // Until the child has become `sleep`, it has the environment of this process.
    let place = format!("/proc/{}/comm", sleeper.id());
    while std::fs::read_to_string(&place).unwrap().trim() != "sleep" {
        std::thread::yield_now();
    }
    let output =
        command(&format!("doctor env --json --nccl 2.28.9 --pid {}", sleeper.id())).output().unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let examination = json(&output);
    assert!(rules(&examination).contains(&"p2p-disabled".to_owned()), "{examination}");
    assert!(examination["unseen"].to_string().contains("the start of the process"), "{examination}");
}

#[test]
fn bad_input_is_refused_with_the_remedy() {
    for (arguments, says) in [
        ("doctor env --pid 4294967295", "no such process"),
        ("doctor env --file /nowhere/job.yaml", "reading /nowhere/job.yaml"),
        ("doctor env --nccl 2.28", "write it as 2.28.9"),
        ("doctor env --plugin newest", "write it as"),
        ("doctor env --pid 1 --file x", "cannot be used with"),
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        assert!(err(&output).contains(says), "{arguments}: {}", err(&output));
    }
}
