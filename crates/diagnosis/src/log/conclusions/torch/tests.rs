use crate::finding::Finding;
use crate::log::conclusions::tests::{examine, pair};

/// Returns the watchdog's report of a rank: the awaited call, and the process group.
fn timeout(rank: u32, group: &str, sequence: u64, operation: &str, elements: u64) -> String {
    let line = format!(
        "[rank{rank}]:[E1124 13:47:03.6 a.cpp:689] [Rank {rank}] Watchdog caught collective operation \
         timeout: WorkNCCL(SeqNum={sequence}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, \
         Timeout(ms)=12000) ran for 12054 milliseconds before timing out.\n"
    );
    match group {
        "" => line,
        _ => format!(
            "{line}[rank{rank}]:[E1124 13:47:03.6 a.cpp:2303] [PG ID 0 PG GUID {group} Rank {rank}]  failure \
             detected by watchdog at work sequence id: {sequence} PG status: last enqueued work: {sequence}, \
             last completed work: 1\n"
        ),
    }
}

fn first(lines: &str) -> Finding {
    examine(&(pair("IB", "NET/IB/0/GDRDMA").text() + lines)).findings.remove(0)
}

const ALL: &str = "0(default_pg)";

#[test]
fn different_operations_at_one_number_are_the_cause() {
    let found = first(&(timeout(1, ALL, 6, "BROADCAST", 4) + &timeout(0, ALL, 6, "ALLREDUCE", 8)));
    assert_eq!(
        found.diagnosis,
        "The ranks called different collectives at SeqNum 6 of group default_pg: ALLREDUCE on rank 0; \
         BROADCAST on rank 1"
    );
    assert_eq!(found.rule, "torch-order-differs");
    assert_eq!(found.consequences.len(), 1);
    let unnamed = first(&(timeout(1, "", 6, "BROADCAST", 4) + &timeout(0, "", 6, "ALLREDUCE", 8)));
    assert!(unnamed.cause.unwrap().contains("do not name the process group"));
}

#[test]
fn calls_of_different_groups_are_not_compared() {
    let found = first(&(timeout(1, "7(tp)", 6, "BROADCAST", 4) + &timeout(0, "8(dp)", 6, "ALLREDUCE", 8)));
    assert_eq!(found.rule, "torch-watchdog-timeout");
    // Two ranks that wait, without the names of their groups.
    let found = first(&(timeout(1, "", 5, "ALLREDUCE", 8) + &timeout(0, "", 96, "ALLREDUCE", 8)));
    assert_eq!(found.rule, "torch-watchdog-timeout");
}

#[test]
fn sizes_that_may_differ_and_calls_between_pairs_are_not_compared() {
    for operation in ["ALLTOALL_BASE", "ALLGATHER", "SEND"] {
        let found = first(&(timeout(1, ALL, 6, operation, 4) + &timeout(0, ALL, 6, operation, 8)));
        assert!(
            !found.rule.ends_with("differ") && !found.rule.ends_with("differs"),
            "{operation}: {found:?}"
        );
    }
    let found = first(&(timeout(1, ALL, 6, "SEND", 4) + &timeout(0, ALL, 6, "RECV", 8)));
    assert_eq!(found.rule, "torch-watchdog-timeout");
}

#[test]
fn a_rank_at_a_lower_number_is_late() {
    let found = first(&(timeout(1, ALL, 5, "ALLREDUCE", 8) + &timeout(0, ALL, 6, "ALLREDUCE", 8)));
    assert_eq!((found.rule.as_str(), &found.ranks[..]), ("torch-rank-late", &[1][..]));
    let silent = first(&timeout(0, ALL, 6, "ALLREDUCE", 8));
    assert!(silent.diagnosis.starts_with("Rank 1 did not report ALLREDUCE of 8 elements"), "{silent:?}");
}

#[test]
fn a_rank_in_a_call_that_others_completed_made_other_calls() {
    let wait = |rank: u32, sequence: u64, operation: &str| {
        format!(
            "{}[rank{rank}]:[E1 a.cpp:1785] [PG ID 0 PG GUID {ALL} Rank {rank}] Exception (either an error or \
             timeout) detected by watchdog at work: {sequence}, last enqueued NCCL work: {}, last completed \
             NCCL work: 1.\n",
            timeout(rank, "", sequence, operation, 8),
            sequence + 5,
        )
    };
    let apart = first(&(wait(0, 5, "_REDUCE_SCATTER_BASE") + &wait(1, 9, "_ALLGATHER_BASE")));
    assert_eq!((apart.rule.as_str(), &apart.ranks[..]), ("torch-ranks-apart", &[0][..]));
    assert!(
        apart.diagnosis.contains("(SeqNum 5 of group default_pg), which rank 1 had completed"),
        "{apart:?}"
    );
    // The root of a broadcast does not wait for others, and numbers of unnamed groups are not compared.
    for lines in [
        wait(0, 5, "BROADCAST") + &wait(1, 9, "ALLREDUCE"),
        wait(0, 5, "ALLREDUCE") + &wait(1, 6, "ALLREDUCE"),
        timeout(0, "", 5, "ALLREDUCE", 8) + &timeout(1, "", 9, "ALLREDUCE", 8),
    ] {
        assert_ne!(first(&lines).rule, "torch-ranks-apart", "{lines}");
    }
}

#[test]
fn equal_calls_of_all_ranks_are_no_fault_of_the_program() {
    let found = first(&(timeout(1, ALL, 6, "ALLREDUCE", 8) + &timeout(0, ALL, 6, "ALLREDUCE", 8)));
    assert!(found.diagnosis.starts_with("All 2 ranks wait in ALLREDUCE of 8 elements"), "{found:?}");
}

#[test]
fn an_error_of_the_late_rank_is_the_cause() {
    let full = "b:101:101 [1] some/file.cc:1 NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes, \
                error: No space left on device (28)\n";
    let found = first(&(timeout(0, ALL, 6, "ALLREDUCE", 8) + full));
    assert_eq!((found.rule.as_str(), found.consequences.len()), ("nccl-shm-full", 2));
    let odd = "b:101:101 [1] some/file.cc:1 NCCL WARN The flux capacitor is cold\n";
    let found = first(&(odd.to_owned() + &timeout(0, ALL, 6, "ALLREDUCE", 8)));
    assert_eq!(found.rule, "unknown-warning");
    let of_the_other = odd.replace("b:101:101 [1]", "a:100:100 [0]");
    let found = first(&(of_the_other + &timeout(0, ALL, 6, "ALLREDUCE", 8)));
    assert_eq!(found.rule, "torch-rank-late");
}

/// Returns a comparison of the ranks, below the watchdog's report of a rank.
fn comparison(lines: &[&str]) -> Finding {
    let lines: String = lines.iter().map(|line| format!("\t - {line}\n")).collect();
    examine(&(timeout(0, ALL, 12, "ALLREDUCE", 8) + &lines)).findings.remove(0)
}

#[test]
fn a_comparison_of_the_ranks_names_the_late_ones() {
    let told = |lines: &[&str]| {
        let found = comparison(lines);
        (found.rule.clone(), found.ranks.clone(), found.diagnosis.clone())
    };
    let (rule, ranks, diagnosis) =
        told(&["[1, 3] finished collective #11, but didn't join collective #12 (count from 1)"]);
    assert_eq!((rule.as_str(), &ranks[..]), ("torch-rank-late", &[1, 3][..]));
    assert_eq!(
        diagnosis,
        "Ranks 1, 3 did not call ALLREDUCE of 8 elements (SeqNum 12 of group default_pg), for which rank 0 \
         waited until the timeout; the last call there was SeqNum 11"
    );
    let (_, ranks, diagnosis) = told(&[
        "To our best knowledge, ranks [2] are the lagging ranks that caused this timeout. They never joined \
         any collectives",
    ]);
    assert!(ranks == [2] && diagnosis.ends_with("no call of a collective is known there"), "{diagnosis}");
    // The last calls are not those that the ranks wait for.
    let (rule, ranks, _) = told(&[
        "[0] Timeout at collective: ALLREDUCE, #30",
        "[3] joined but didn't finish collective #10 (count from 1)",
        "#30 started ranks:",
        "[0, 1] started ALLREDUCE",
        "#32 started ranks:",
        "[2] started _ALLGATHER_BASE",
    ]);
    assert_eq!((rule.as_str(), &ranks[..]), ("torch-rank-late", &[3][..]));
    let (rule, ranks, diagnosis) =
        told(&["#12 started ranks:", "[0, 1] started ALLREDUCE", "[2] started BROADCAST"]);
    assert_eq!((rule.as_str(), &ranks[..]), ("torch-order-differs", &[2][..]));
    assert!(diagnosis.contains("ALLREDUCE on ranks 0-1; BROADCAST on rank 2"), "{diagnosis}");
    // All ranks are in the same call: none is late.
    let (rule, ranks, _) = told(&["#12 started ranks:", "[0, 1, 2] started ALLREDUCE"]);
    assert_eq!((rule.as_str(), &ranks[..]), ("torch-all-wait", &[0, 1, 2][..]));
    let (rule, _, _) = told(&["#12 started ranks:", "[0, 2] started ALLREDUCE"]);
    assert_eq!(rule, "torch-watchdog-timeout");
}

#[test]
fn ranks_of_a_part_are_numbered_within_it() {
    let compared = "\t - [1] finished collective #5, but didn't join collective #6 (count from 1)\n";
    let found = examine(&(timeout(3, "7(tp)", 6, "ALLREDUCE", 8) + compared)).findings.remove(0);
    assert!(
        found.ranks.is_empty() && found.diagnosis.ends_with("SeqNum 5 (ranks of the group)"),
        "{found:?}"
    );
}

#[test]
fn a_comparison_alone_names_the_late_ranks() {
    let found = examine("\t - [1] finished collective #41, but didn't join collective #42 (count from 1)\n");
    let first = &found.findings[0];
    assert_eq!((first.rule.as_str(), &first.ranks[..]), ("torch-rank-late", &[1][..]));
    assert!(first.diagnosis.contains("SeqNum 42), for which other ranks waited"), "{first:?}");
}
