use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Corpus of a target of `cargo fuzz`.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let inputs: Vec<Vec<u8>> =
        fs::read_dir(folder).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
    assert!(!inputs.is_empty(), "no corpus for {target}");
    inputs
}

#[test]
fn the_corpus_passes_and_covers_all_outcomes() {
    corpus("wire").iter().for_each(|input| wire(input));
    corpus("service").iter().for_each(|input| service(input));
    let joined: BTreeSet<String> = corpus("join").iter().map(|input| join(input)).collect();
    // The corpus covers these outcomes.
    for outcome in [
        "met",
        "rank 0 of another job listens there",
        "it does not speak this program's protocol",
        "closed the connection without a reply",
        "refused this rank: there is no place",
        "rank 2 is missing",
        "rank 0 sent another frame than the list of ranks",
        "rank 0 sent a frame of 4294967295 bytes",
        "rank 0 ended while other ranks were missing",
    ] {
        assert!(joined.iter().any(|joined| joined.contains(outcome)), "{outcome}: {joined:?}");
    }
    let mut outcome = Outcome::default();
    for input in corpus("rendezvous") {
        let mut of_this = rendezvous(&input);
        outcome.rejections.append(&mut of_this.rejections);
        outcome.accepted += of_this.accepted;
    }
    // The corpus covers these rejections.
    for reason in [
        "it belongs to another job (`another job`, this one is `our job`)",
        "it does not speak this program's protocol",
        "it speaks version 9 of the protocol",
        "a frame of 65535 bytes",
        "a name of 65535 bytes",
        "its hello took too long",
        "it sent nothing in time",
        "it closed the connection before its hello",
        "too many connections were pending",
        "was started as one of",
        "was started twice",
        "it closed the connection after its hello",
        "bytes too many",
    ] {
        assert!(
            outcome.rejections.iter().any(|rejection| rejection.contains(reason)),
            "{reason}: {outcome:?}"
        );
    }
    assert!(outcome.accepted > 1, "{outcome:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_input_passes(data in prop::collection::vec(any::<u8>(), 0..300)) {
        wire(&data);
        rendezvous(&data);
        service(&data);
        join(&data);
    }

    #[test]
    fn random_input_after_an_accepting_reply_passes(
        mut data in prop::collection::vec(any::<u8>(), 0..100),
        cut in any::<u8>(),
    ) {
        data.splice(0..0, [cut, 0]);
        join(&data);
    }

    #[test]
    fn random_input_after_a_hello_passes(
        mut data in prop::collection::vec(any::<u8>(), 0..100),
        rank in 0_u8..6,
    ) {
        data.splice(0..0, [0, 2, rank, 0, 0, 0, 7]);
        rendezvous(&data);
    }
}
