use super::*;
use crate::finding::{Finding, Severity};
use crate::host::sample::Machine;
use crate::knowledge::rules::Rules;

fn judged(machine: &Machine) -> (KernelMessages, Vec<Finding>) {
    let rules = Rules::built_in();
    let messages = read_messages(machine.root(), &rules);
    let findings = judge_messages(&messages, Some(7300.0), &rules);
    (messages, findings)
}

#[test]
fn errors_of_gpus_are_counted_by_number_with_their_devices_and_times() {
    let machine = Machine::new().with_file(
        "dev/kmsg",
        "6,339,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n\
         3,340,100000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.\n \
         SUBSYSTEM=pci\n\
         3,341,200500000,-;NVRM: Xid (PCI:0000:5d:00): 79, pid=78, GPU has fallen off the bus.\n\
         3,342,300000000,-;NVRM: Xid (PCI:0000:5d:00): 31, pid=78, name=python, MMU Fault\n\
         13,343,300000001,-;NVRM: Xid (PCI:0000:77:00): 79, a program wrote this\n\
         torn record\n",
    );
    let (messages, findings) = judged(&machine);
    assert!(messages.complete);
    assert_eq!(messages.kinds.len(), 2, "{:?}", messages.kinds);
    let bus = &messages.kinds[0];
    assert_eq!((bus.count, bus.first, bus.last), (2, Some(100.0), Some(200.5)));
    assert_eq!(bus.devices, ["0000:3b:00", "0000:5d:00"]);
    assert_eq!((findings[0].severity, findings[0].occurrences), (Severity::Broken, 2));
    assert!(
        findings[0].evidence[0].text.starts_with("[100 s to 200 s after the start, 2.0 h ago] NVRM"),
        "{:?}",
        findings[0].evidence
    );
    // A program's own fault leaves the host as it was.
    assert_eq!(findings[1].severity, Severity::Advice, "{:?}", findings[1]);
}

#[test]
fn an_error_that_no_rule_knows_is_unknown_and_never_dropped() {
    let machine =
        Machine::new().with_file("dev/kmsg", "3,1,5,-;NVRM: Xid (PCI:0000:3b:00): 99999, pid=1, news\n");
    let rules = Rules::default();
    let findings = judge_messages(&read_messages(machine.root(), &rules), None, &rules);
    assert_eq!(findings[0].severity, Severity::Unknown);
    assert!(findings[0].diagnosis.contains("Xid 99999"), "{}", findings[0].diagnosis);
}

#[test]
fn files_of_the_system_s_logger_are_read_without_kmsg() {
    let machine = Machine::new().with_file(
        "var/log/kern.log",
        "Nov 24 10:00:00 vm kernel: [  100.5] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n\
         2026-11-24T10:00:00+00:00 vm kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n\
         Nov 24 10:00:00 vm app[7]: NVRM: Xid (PCI:0000:3b:00): 79, a program wrote this\n",
    );
    let (messages, _) = judged(&machine);
    assert_eq!((messages.place.as_deref(), messages.complete), (Some("/var/log/kern.log"), false));
    assert_eq!((messages.kinds.len(), messages.kinds[0].count, messages.kinds[0].first), (1, 2, Some(100.5)));
    assert_eq!(judged(&Machine::new()).0, KernelMessages::default());
}

#[test]
fn a_crashed_process_leaves_the_host_as_it_was() {
    for text in [
        "python[4424]: segfault at 8 ip 00007f sp 00007f error 4 in libc.so.6[7f+1]",
        "traps: python[4424] general protection fault ip:7f sp:7f error:0 in libc.so.6[7f+1]",
    ] {
        let machine = Machine::new().with_file("dev/kmsg", &format!("6,1,5,-;{text}\n"));
        let (_, findings) = judged(&machine);
        assert_eq!(findings[0].severity, Severity::Advice, "{text}: {findings:?}");
    }
}
