//! Settings of communicators and calls, and NCCL's parameters.

use std::slice;

use collectives::ReduceOp;
use collectives::nccl::{CallConfig, Collectives, Communicator, Config, Error, Memory, Split, group};

use crate::arena::Room;
use crate::case::{Case, Collective, Way, check, check_all};
use crate::collectives::{LONGEST, SHORT, works};
use crate::copies::Copies as _;
use crate::gpus::{Gpus, missing};
use crate::reference::fresh_seed;

pub(crate) fn settings_of_the_loaded_version() {
    let gpus = Gpus::all();
    // SAFETY: the communicator and its part are used one after the other, and neither is aborted.
    let mut config = unsafe { Config::new().min_ctas(1).max_ctas(8).split_share(true) };
    if gpus.is_at_least(2, 27, 0) {
        // SAFETY: as above.
        config = unsafe { config.name("gpu test").shrink_share(true) };
    }
    if gpus.is_at_least(2, 28, 0) {
        config = config.nvlink_centric_sched(true);
    } else {
        let newer = Config::new().nvlink_centric_sched(true);
        let made = Communicator::builder(gpus.library, &gpus.stream(0)).config(&newer).init();
        assert!(matches!(made, Err(Error::TooOld { .. })), "{made:?}");
    }
    let seed = fresh_seed();
    gpus.ranks(&config, |communicator| {
        works(communicator, seed);
        let part = communicator.split(&Split::color(0)).unwrap();
        works(&part, seed);
    });
}

/// Every collective with call settings since NCCL 2.31; before, they are refused.
pub(crate) fn settings_of_calls() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (library, stream) = (communicator.library(), communicator.stream());
        let mut memory = Memory::alloc(library, stream, 4).unwrap();
        let mut view = memory.slice_mut::<f32>(..1).unwrap();
        let config = CallConfig::new().max_ctas(4);
        if !gpus.is_at_least(2, 31, 0) {
            let error = communicator.with(&config).all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap_err();
            assert!(matches!(error, Error::TooOld { .. }), "{error}");
            return;
        }
        let error = communicator.with(&config).send(&view.as_view(), communicator.rank()).unwrap_err();
        assert!(error.to_string().starts_with("ncclSend: it does not take a CallConfig"), "{error}");
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, LONGEST);
        check_all::<f32, _>(party, &mut rooms, Way::Configured(&config), &SHORT, seed);
        check_all::<u8, _>(party, &mut rooms, Way::Configured(&config), &SHORT, seed);
        if communicator.size() > 1 {
            let ring = CallConfig::new().algorithm("ring").max_ctas(8);
            let collective = Collective::AllReduce(ReduceOp::Sum);
            let case = Case { collective, in_place: true, len: LONGEST, size: communicator.size(), seed };
            check::<f32, _>(party, &mut rooms, Way::Configured(&ring), &case);
        }
    });
    if gpus.is_at_least(2, 31, 0) {
        let party = gpus.together(&Config::new());
        let config = CallConfig::new().max_ctas(2);
        let mut buffers: Vec<_> =
            party.iter().map(|member| member.stream().clone_htod(&[1.0f32; 1_001]).unwrap()).collect();
        group(|group| {
            party.iter().zip(&mut buffers).try_for_each(|(member, buffer)| {
                group.on(member).with(&config).all_reduce_in_place(buffer, ReduceOp::Sum)
            })
        })
        .unwrap();
        for (member, buffer) in party.iter().zip(&buffers) {
            assert_eq!(member.stream().read(buffer), [gpus.count as f32; 1_001]);
        }
    }
}

/// NCCL lists its parameters, and each can be read on its own.
pub(crate) fn parameters() {
    let gpus = Gpus::all();
    let library = gpus.library;
    if !gpus.has("ncclParamGetAllParameterKeys") {
        missing(library.parameters(), "ncclParamGetAllParameterKeys");
        return missing(library.parameter("NCCL_NTHREADS"), "ncclParamGetParameter");
    }
    let parameters = library.parameters().unwrap();
    println!("  {} parameters: {parameters:?}", parameters.len());
    assert!(!parameters.is_empty());
    for (name, value) in &parameters {
        assert!(name.starts_with("NCCL_"), "{name}");
        assert_eq!(library.parameter(name).unwrap_or_else(|error| panic!("{name}: {error}")), *value);
    }
    let error = library.parameter("NCCL_NO_SUCH_PARAMETER").unwrap_err();
    assert!(matches!(error, Error::Nccl { .. }), "{error}");
}
