//! Tests of a reader's memory of large and odd logs.

use super::digest;
use crate::knowledge::rules::Rules;
use crate::log::Reader;
use crate::log::digest::Transport;

const START: &str = "a:1:1 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 4 cudaDev 0 busId 60 commId \
                     0x9 - Init START\n";

#[test]
fn a_pair_never_has_the_transport_of_another_one() {
    let mut log = START.to_owned();
    for number in 0..1030 {
        let to = if number < 1024 { 1 } else { 2 };
        log += &format!("a:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> {to}[1] [send] via NET/X{number}/0\n");
    }
    let digest = digest(log);
    let of = |to: u32| digest.communicators[0].connections[&(0, to)].transports.keys().collect::<Vec<_>>();
    assert_eq!(of(1).len(), 1024);
    assert_eq!(of(2), [&Transport::Other("one beyond the first 1024 transports".to_owned())]);
    assert_eq!(digest.limits, ["6 channels were not kept: the limit is 24576 pairs of ranks"]);
}

#[test]
fn choices_with_long_names_are_counted_once() {
    let name = "N".repeat(80);
    let line = format!(
        "a:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo {name} proto LL channel{{Lo..Hi}}={{0..0}}\n"
    );
    let digest = digest(START.to_owned() + &line.repeat(3));
    let choices: Vec<_> = digest.communicators[0].choices.iter().collect();
    assert_eq!(choices, [(&format!("{}…", "N".repeat(64)), &3)]);
}

#[test]
fn a_warning_of_ras_is_taken_for_one_of_ras_only() {
    let rules = Rules::built_in();
    let mut reader = Reader::new(&rules);
    let log = "a:1:1 [0] ras/client.cc:9 NCCL WARN Segmentation fault in a test, CrashLoopBackOff\n";
    reader.read_stream("log", log.as_bytes());
    let digest = reader.finish();
    assert_eq!(digest.hits.iter().map(|hit| hit.rule.as_str()).collect::<Vec<_>>(), ["ras-fault"]);
}
