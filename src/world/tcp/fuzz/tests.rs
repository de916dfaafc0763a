use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The inputs that are kept for a target of `cargo fuzz`.
fn kept(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let inputs: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!inputs.is_empty(), "no inputs are kept for {target}");
    inputs
}

#[test]
fn inputs_that_were_kept_are_survived() {
    kept("wire").iter().for_each(|input| wire(input));
    kept("service").iter().for_each(|input| service(input));
    let joined: BTreeSet<String> = kept("join").iter().map(|input| join(input)).collect();
    // What listens at an address must have said for this to say anything.
    for outcome in [
        "met",
        "rank 0 of another job listens there",
        "it does not speak this program's protocol",
        "ended the connection without an answer",
        "refused this rank: there is no place",
        "rank 2 is missing",
        "rank 0 sent something else than the list of ranks",
        "rank 0 sent a frame of 4294967295 bytes",
        "rank 0 ended while other ranks were missing",
    ] {
        assert!(joined.iter().any(|joined| joined.contains(outcome)), "{outcome}: {joined:?}");
    }
    let mut told = Told::default();
    for input in kept("rendezvous") {
        let mut of_this = rendezvous(&input);
        told.refusals.append(&mut of_this.refusals);
        told.seated += of_this.seated;
    }
    // What strangers must have tried for this to say anything.
    for reason in [
        "it belongs to another job (`another job`, this one is `our job`)",
        "it does not speak this program's protocol",
        "it speaks version 9 of the protocol",
        "a greeting of 65535 bytes",
        "a name of 65535 bytes",
        "its greeting took too long",
        "it said nothing in time",
        "it ended before its greeting",
        "too many connections came at once",
        "was started as one of",
        "was started twice",
        "it ended after its greeting",
        "bytes too many",
    ] {
        assert!(told.refusals.iter().any(|refusal| refusal.contains(reason)), "{reason}: {told:?}");
    }
    assert!(told.seated > 1, "{told:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_survived(data in prop::collection::vec(any::<u8>(), 0..300)) {
        wire(&data);
        rendezvous(&data);
        service(&data);
        join(&data);
    }

    #[test]
    fn any_bytes_behind_rank_0_s_consent_are_survived(
        mut data in prop::collection::vec(any::<u8>(), 0..100),
        cut in any::<u8>(),
    ) {
        data.splice(0..0, [cut, 0]);
        join(&data);
    }

    /// A crowd of strangers takes longer, and comes rarely by chance.
    #[test]
    fn any_bytes_behind_a_greeting_are_survived(
        mut data in prop::collection::vec(any::<u8>(), 0..100),
        rank in 0_u8..6,
    ) {
        data.splice(0..0, [0, 2, rank, 0, 0, 0, 7]);
        rendezvous(&data);
    }
}
