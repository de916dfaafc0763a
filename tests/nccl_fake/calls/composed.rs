//! Collectives composed of sends and receives.

use super::*;

/// Log lines of two elements: "send m1+8 to 0" and "recv m2 from 0".
fn messages(lines: &[&str]) -> Vec<String> {
    let line = |line: &&str| {
        let words: Vec<_> = line.split(' ').collect();
        let [verb, address, _, peer] = words[..] else { panic!("{line}") };
        let addresses = if verb == "send" { format!("{address}->null") } else { format!("null->{address}") };
        format!("launch {verb} comm1 {addresses} count 2 type 7 op -1 peer {peer} s1 device 0")
    };
    lines.iter().map(line).collect()
}

#[test]
fn missing_functions_are_composed_of_sends_and_receives() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 3, &Config::new());
    let (send, mut receive) = (fake.memory(old.stream(), 24), fake.memory(old.stream(), 24));
    let (two, six) = (send.slice::<f32>(..2).unwrap(), send.slice::<f32>(..6).unwrap());
    let sent = |result: Result, expected: &[&str]| {
        result.unwrap();
        assert_eq!(fake.log(), messages(expected));
    };

    let mut into = receive.slice_mut::<f32>(..6).unwrap();
    let all_to_all = [
        "send m1 to 0",
        "recv m2 from 0",
        "send m1+8 to 1",
        "recv m2+8 from 1",
        "send m1+16 to 2",
        "recv m2+16 from 2",
    ];
    sent(old.all_to_all(&six, &mut into), &all_to_all);
    sent(group(|group| group.on(&old).all_to_all(&six, &mut into)), &all_to_all);

    let gathered = |own| ["recv m2 from 0", own, "recv m2+8 from 1", "recv m2+16 from 2"];
    sent(old.gather(&two, Some(&mut into), 1), &gathered("send m1 to 1"));
    sent(old.gather(&two, None::<&mut ViewMut<'_>>, 0), &["send m1 to 0"]);
    // In place, rank 1 has its part, which begins at byte 8.
    sent(old.gather_in_place(&mut into, 1), &gathered("send m2+8 to 1"));
    sent(old.gather_in_place(&mut into, 0), &["send m2+8 to 0"]);

    let to_all = ["send m2 to 0", "send m2+8 to 1", "recv m2+8 from 1", "send m2+16 to 2"];
    sent(old.scatter_in_place(&mut into, 1), &to_all);
    sent(old.scatter_in_place(&mut into, 0), &["recv m2+8 from 0"]);
    let mut into = receive.slice_mut::<f32>(..2).unwrap();
    let to_all = ["send m1 to 0", "send m1+8 to 1", "recv m2 from 1", "send m1+16 to 2"];
    sent(old.scatter(Some(&six), &mut into, 1), &to_all);
    sent(old.scatter(None::<&View<'_>>, &mut into, 0), &["recv m2 from 0"]);
}

#[test]
fn monarch_1_a_composition_that_fails_launches_nothing_and_names_the_collective() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let mut memory = fake.memory(old.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    fake.set(Knob::NcclResult, 5);
    let error = old.gather_in_place(&mut view, 1).unwrap_err();
    assert!(matches!(error, Error::Nccl { operation: "ncclGather", code: ResultCode(5), .. }), "{error}");
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
    // The thread is in no group (monarch 1).
    old.broadcast_in_place(&mut view, 0).unwrap();
    assert_eq!(fake.log(), ["launch broadcast comm1 m1->m1 count 4 type 7 op -1 root 0 s1 device 0"]);
}

#[test]
fn a_composition_in_progress_is_waited_for() {
    let fake = Fake::new();
    let config = Config::new().blocking(false).deadline(Duration::from_millis(20));
    let old = fake.rank(fake.old_library(), 1, 2, &config);
    let mut memory = fake.memory(old.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let result = old.scatter_in_place(&mut view, 0);
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclScatter", .. })), "{result:?}");
    let recv = "launch recv comm1 null->m1+8 count 2 type 7 op -1 peer 0 s1 device 0";
    assert_eq!(fake.log(), [recv, "abort comm1"]);
}
