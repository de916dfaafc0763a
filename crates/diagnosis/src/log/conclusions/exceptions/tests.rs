use super::super::tests::{examine, pair};
use crate::examination::Health;

const HEAD: &str = "Traceback (most recent call last):\n  File \"train.py\", line 7, in main\n    step()\n";
const ERROR: &str = "ValueError: the batch has 3 samples, expected 4\n";

/// Returns the health, and the rule and diagnosis of the first finding.
fn judge(log: &str) -> (Health, String, String) {
    let found = examine(log);
    let first = found.findings.first();
    let told = |text: Option<&String>| text.cloned().unwrap_or_default();
    (found.health(), told(first.map(|each| &each.rule)), told(first.map(|each| &each.diagnosis)))
}

fn labelled(label: &str, text: &str) -> String {
    text.lines().map(|line| format!("{label}{line}\n")).collect()
}

#[test]
fn an_exception_at_the_end_is_the_failure() {
    let (head, error) = (HEAD.to_owned(), ERROR);
    let chain = "\nDuring handling of the above exception, another exception occurred:\n\n";
    let launcher =
        "\n============================\ntrain.py FAILED\n----------------------------\n  time : 2026\n";
    for log in [
        head.clone() + error,
        format!("start of the program\n{head}{error}"),
        format!("{head}{error}{chain}{head}RuntimeError: no data\n"),
        labelled("[rank0]: ", &(head.clone() + error)) + "[rank1]: step 9\n",
        format!("{head}{error}{launcher}"),
        head.clone() + "noise of another process\n" + error,
        labelled("ERROR 11-29 10:00:00 [core.py:390] ", &(head.clone() + error)),
    ] {
        let (health, rule, diagnosis) = judge(&log);
        assert_eq!((health, rule.as_str()), (Health::Broken, "python-ended"), "{log}");
        assert!(
            diagnosis.ends_with("exception: ValueError: the batch has 3 samples, expected 4"),
            "{diagnosis}"
        );
    }
}

#[test]
fn a_program_that_goes_on_handled_its_exception() {
    let log = HEAD.to_owned() + ERROR;
    for log in [
        format!("{log}step 12: loss 0.4\n"),
        format!("{log}vm:1:1 [0] NCCL INFO Bootstrap: Using eth0:192.0.2.1<0>\n"),
        labelled("[rank0]: ", &log) + "[rank0]: step 9\n",
        format!("{log} 12%|# | 12/100 [00:12<01:00, 1.1it/s]\n"),
        format!("Exception ignored in: <function Pool.__del__ at 0x7f>\n{log}"),
        format!(
            "{}KeyError: '/psm_1'\n",
            HEAD.replace("train.py", "/usr/lib/python3/multiprocessing/resource_tracker.py")
        ),
    ] {
        let (health, rule, diagnosis) = judge(&log);
        assert_eq!((health, rule.as_str()), (Health::CannotTell, "python-exception"), "{log}");
        assert!(diagnosis.contains("printed an exception"), "{diagnosis}");
    }
    let healthy = format!("{}Exception ignored in: x\n{log}", pair("IB", "NET/IB/0/GDRDMA").text());
    assert_ne!(judge(&healthy).0, Health::Broken);
}

#[test]
fn an_interrupt_and_a_cut_traceback_tell_no_failure() {
    for log in [
        HEAD.to_owned(),
        format!("{HEAD}KeyboardInterrupt\n"),
        format!(
            "{HEAD}{ERROR}\nDuring handling of the above exception, another exception occurred:\n\n{HEAD}KeyboardInterrupt\n"
        ),
    ] {
        assert_eq!(judge(&log).0, Health::CannotTell, "{log}");
    }
}

#[test]
fn a_specific_message_leads_before_an_exception() {
    let log = format!("{HEAD}{ERROR}RuntimeError: can't start new thread\n");
    assert_eq!(judge(&log).1, "thread-limit");
    let log = format!("{HEAD}OSError: [Errno 98] Address already in use\n");
    assert_eq!(judge(&log), (Health::Broken, "port-in-use".to_owned(), judge(&log).2));
    let launcher = "E0911 16:21:58.8 325 torch/distributed/elastic/multiprocessing/api.py:869] failed \
                    (exitcode: -6) local_rank: 0 (pid: 470) of binary: /usr/bin/python\n";
    assert!(!judge(&format!("{launcher}{HEAD}")).2.contains("traceback"));
}
