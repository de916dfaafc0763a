//! Every collective, type, operator and root, called in every way, against the reference.

use std::slice;

use collectives::nccl::{Collectives, Communicator, Config, Error, Memory, group, simulate};
use collectives::{DataType, ReduceOp};
use cudarc::driver::CudaSlice;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::arena::Room;
use crate::case::{Case, Collective, Way, call, check_all, check_some};
use crate::copies::Copies as _;
use crate::gpus::Gpus;
use crate::reference::{Value, bits, fresh_seed, reduced};

/// Elements per part: one, an odd number, and enough for several thread blocks.
pub(crate) const LENGTHS: [usize; 3] = [1, 1_001, 100_000];
pub(crate) const SHORT: [usize; 2] = [1, 1_001];
pub(crate) const LONGEST: usize = LENGTHS[2];

fn is_fp8<T: Value>() -> bool {
    matches!(T::DATA_TYPE, DataType::Float8E4M3 | DataType::Float8E5M2)
}

/// All collectives of one type. 8-bit floating-point numbers need NCCL 2.24, and Hopper or newer to reduce
/// them.
fn of_type<T: Value>(
    gpus: Gpus,
    party: &[Communicator],
    rooms: &mut [Room<Memory>],
    way: Way<'_>,
    lengths: &[usize],
    seed: u64,
) {
    let all_reduce =
        |size| Case { collective: Collective::AllReduce(ReduceOp::Sum), in_place: false, len: 1, size, seed };
    let size = party[0].size();
    if is_fp8::<T>() && !gpus.is_at_least(2, 24, 0) {
        let error = call::<T, _>(party, rooms, way, &all_reduce(size)).unwrap_err();
        assert!(matches!(error, Error::TooOld { .. }), "{error}");
    } else if is_fp8::<T>() && !gpus.reduce_fp8() {
        let error = call::<T, _>(party, rooms, way, &all_reduce(size)).unwrap_err();
        assert!(matches!(error, Error::Nccl { .. }), "{error}");
        check_some::<T, _>(party, rooms, way, lengths, seed, |collective| collective.op().is_none());
    } else {
        check_all::<T, _>(party, rooms, way, lengths, seed);
    }
}

/// All collectives of all types.
pub(crate) fn of_every_type(
    gpus: Gpus,
    party: &[Communicator],
    rooms: &mut [Room<Memory>],
    way: Way<'_>,
    lengths: &[usize],
    seed: u64,
) {
    macro_rules! each {
        ($($type:ty),*) => {$(of_type::<$type>(gpus, party, rooms, way, lengths, seed);)*};
    }
    each!(i8, u8, i32, u32, i64, u64, f16, f32, f64, bf16, F8E4M3, F8E5M2);
}

/// Checks a communicator that was created in an unusual way.
pub(crate) fn works(communicator: &Communicator, seed: u64) {
    works_together(slice::from_ref(communicator), seed, Way::Alone);
}

/// Like [`works`], for all communicators of this thread.
pub(crate) fn works_together(party: &[Communicator], seed: u64, way: Way<'_>) {
    let mut rooms = Room::of(party, SHORT[1]);
    check_all::<f32, _>(party, &mut rooms, way, &SHORT, seed);
    check_all::<u8, _>(party, &mut rooms, way, &SHORT, seed);
}

pub(crate) fn every_collective_with_every_type_and_operator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let party = slice::from_ref(communicator);
        of_every_type(gpus, party, &mut Room::of(party, LONGEST), Way::Alone, &LENGTHS, seed);
    });
}

/// NCCL uses other algorithms for several megabytes.
pub(crate) fn collectives_of_several_megabytes() {
    const LEN: usize = 1_000_001;
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, LEN);
        let sums = |collective: Collective| matches!(collective.op(), None | Some(ReduceOp::Sum));
        check_some::<f32, _>(party, &mut rooms, Way::Alone, &[LEN], seed, sums);
        check_some::<bf16, _>(party, &mut rooms, Way::Alone, &[LEN], seed, sums);
    });
}

pub(crate) fn every_collective_in_groups_over_all_gpus_in_one_thread() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let mut rooms = Room::of(&party, LONGEST);
    of_every_type(gpus, &party, &mut rooms, Way::Grouped, &SHORT, seed);
    check_all::<f32, _>(&party, &mut rooms, Way::Grouped, &[LONGEST], seed);
    check_all::<bf16, _>(&party, &mut rooms, Way::Grouped, &[LONGEST], seed);
    check_all::<f64, _>(&party, &mut rooms, Way::Nested, &SHORT, seed);
    check_all::<i8, _>(&party, &mut rooms, Way::Nested, &SHORT, seed);
    for member in party {
        member.close().unwrap();
    }
}

pub(crate) fn every_collective_over_cudarcs_own_slices() {
    fn of_type<T: Value>(party: &[Communicator], way: Way<'_>, seed: u64) {
        let room = |member: &Communicator| -> Room<CudaSlice<T>> {
            Room::of_cudarc(member.stream(), SHORT[1], member.size())
        };
        let mut rooms: Vec<_> = party.iter().map(room).collect();
        check_all::<T, _>(party, &mut rooms, way, &SHORT, seed);
    }
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        of_type::<f16>(slice::from_ref(communicator), Way::Alone, seed);
        of_type::<i64>(slice::from_ref(communicator), Way::Grouped, seed);
    });
    let party = gpus.together(&Config::new());
    of_type::<f32>(&party, Way::Grouped, seed);
    of_type::<u8>(&party, Way::Nested, seed);
}

/// Several operations of several types in one group.
pub(crate) fn groups_of_different_operations() {
    const LEN: usize = 4_099;
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let of = |rank| -> Vec<f32> {
        (0..LEN)
            .map(|index| Value::contribution(bits(seed, rank, index), ReduceOp::Sum, gpus.count))
            .collect()
    };
    let bytes = |rank| -> Vec<u8> { (0..LEN).map(|index| Value::any(bits(!seed, rank, index))).collect() };
    let streams: Vec<_> = party.iter().map(Communicator::stream).collect();
    let numbers: Vec<_> =
        streams.iter().enumerate().map(|(rank, stream)| stream.clone_htod(&of(rank)).unwrap()).collect();
    let texts: Vec<_> =
        streams.iter().enumerate().map(|(rank, stream)| stream.clone_htod(&bytes(rank)).unwrap()).collect();
    let mut sums: Vec<_> = streams.iter().map(|stream| stream.alloc_zeros::<f32>(LEN).unwrap()).collect();
    let mut all: Vec<_> =
        streams.iter().map(|stream| stream.alloc_zeros::<u8>(LEN * gpus.count).unwrap()).collect();
    group(|group| {
        for (rank, (sum, all)) in sums.iter_mut().zip(&mut all).enumerate() {
            group.on(&party[rank]).all_reduce(&numbers[rank], sum, ReduceOp::Sum)?;
            group.on(&party[rank]).all_gather(&texts[rank], all)?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    // The inputs are freed in their streams' order, after the group.
    drop((numbers, texts));
    let inputs: Vec<_> = (0..gpus.count).map(of).collect();
    let sum: Vec<f32> =
        (0..LEN).map(|index| reduced(ReduceOp::Sum, inputs.iter().map(|input| input[index]))).collect();
    let gathered: Vec<u8> = (0..gpus.count).flat_map(bytes).collect();
    for (rank, stream) in streams.iter().enumerate() {
        assert!(stream.read(&sums[rank]) == sum, "rank {rank}, seed {seed}");
        assert!(stream.read(&all[rank]) == gathered, "rank {rank}, seed {seed}");
    }
}

/// NCCL estimates or returns nothing, and writes nothing; the same group then works.
pub(crate) fn a_simulated_group_launches_nothing() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    if !gpus.has("ncclGroupSimulateEnd") {
        let mut buffer = party[0].stream().alloc_zeros::<f32>(1).unwrap();
        let result = simulate(|group| group.on(&party[0]).all_reduce_in_place(&mut buffer, ReduceOp::Sum));
        return crate::gpus::missing(result, "ncclGroupSimulateEnd");
    }
    let mut rooms = Room::of(&party, SHORT[1]);
    check_all::<f32, _>(&party, &mut rooms, Way::Simulated, &SHORT, seed);
    check_all::<f32, _>(&party, &mut rooms, Way::Grouped, &SHORT, seed);
    let mut buffers: Vec<_> =
        party.iter().map(|member| member.stream().alloc_zeros::<f32>(1 << 20).unwrap()).collect();
    let estimate = simulate(|group| {
        party
            .iter()
            .zip(&mut buffers)
            .try_for_each(|(member, buffer)| group.on(member).all_reduce_in_place(buffer, ReduceOp::Sum))
    });
    match estimate.unwrap() {
        Some(time) => {
            println!("  NCCL's estimate of an all_reduce of 4 MiB: {time:?}");
            assert!(!time.is_zero());
        }
        None => println!("  NCCL has no estimate"),
    }
}

/// An error in the middle of a group of real operations: nothing is launched, and the communicators still
/// work.
pub(crate) fn a_cancelled_group_launches_nothing() {
    const LEN: usize = 1024;
    let gpus = Gpus::all();
    let party = gpus.together(&Config::new());
    let mut buffers: Vec<_> =
        party.iter().map(|member| member.stream().clone_htod(&[3.0f32; LEN]).unwrap()).collect();
    let result: Result<(), Error> = group(|group| {
        for (member, buffer) in party.iter().zip(&mut buffers) {
            group.on(member).all_reduce_in_place(buffer, ReduceOp::Sum)?;
        }
        Err(Error::Rank { rank: 1, size: 1 })
    });
    assert!(matches!(result, Err(Error::Rank { .. })));
    // The error of a nested group cancels the whole group, even if it is not propagated.
    let result: Result<(), Error> = group(|group| {
        for (member, buffer) in party.iter().zip(&mut buffers) {
            group.on(member).all_reduce_in_place(buffer, ReduceOp::Sum)?;
        }
        let _not_passed_on = group.nested(|_| Err::<(), _>(Error::Rank { rank: 1, size: 1 }));
        Ok(())
    });
    let text = result.unwrap_err().to_string();
    assert!(text.ends_with("cancelled, because a group in it failed or panicked"), "{text}");
    for (member, buffer) in party.iter().zip(&buffers) {
        assert_eq!(member.stream().read(buffer), [3.0; LEN], "unchanged");
    }
    group(|group| {
        party
            .iter()
            .zip(&mut buffers)
            .try_for_each(|(member, buffer)| group.on(member).all_reduce_in_place(buffer, ReduceOp::Sum))
    })
    .unwrap();
    for (member, buffer) in party.iter().zip(&buffers) {
        let sum = 3.0 * gpus.count as f32;
        assert_eq!(member.stream().read(buffer), [sum; LEN]);
        member.async_error().unwrap();
    }
}

/// Every rank has another scalar: on the host, on the device, and on the device in the order of another
/// stream.
pub(crate) fn scaled_sums_with_scalars_on_host_and_device() {
    fn scalar<T: Value>(rank: usize) -> T {
        T::small(1 + (rank % 3) as u8)
    }

    fn of_type<T: Value>(communicator: &Communicator, len: usize, seed: u64) {
        let (stream, rank, size) = (communicator.stream(), communicator.rank(), communicator.size());
        // Scalars of up to 3, like three times as many ranks, so that all results are exact.
        let input = |rank, index| T::contribution(bits(seed, rank, index), ReduceOp::Sum, 4 * size);
        let scaled =
            |index| reduced(ReduceOp::Sum, (0..size).map(|rank| input(rank, index).multiply(scalar(rank))));
        let host: Vec<T> = (0..len * size).map(|index| input(rank, index)).collect();
        let sums: Vec<T> = (0..len * size).map(scaled).collect();
        let send = stream.clone_htod(&host).unwrap();
        let other = stream.context().new_stream().unwrap();
        let scalars = [&other, stream]
            .map(|stream| Memory::try_from(stream.clone_htod(&[scalar::<T>(rank)]).unwrap()).unwrap());
        let scalars = scalars.each_ref().map(|scalar| scalar.slice::<T>(..).unwrap());
        let operators = [
            communicator.scaled_sum(scalar::<T>(rank)).unwrap(),
            communicator.scaled_sum_on_device(&scalars[0]).unwrap(),
            communicator.scaled_sum_on_device(&scalars[1]).unwrap(),
        ];
        for (kind, operator) in operators.iter().enumerate() {
            let what = format!("{} by scalar {kind}, seed {seed}, rank {rank}", T::DATA_TYPE);
            let mut all = stream.alloc_zeros::<T>(len * size).unwrap();
            communicator.all_reduce(&send, &mut all, operator).unwrap();
            assert!(stream.read(&all) == sums, "all_reduce of {what}");

            let mut place = stream.clone_htod(&host).unwrap();
            communicator.all_reduce_in_place(&mut place, operator).unwrap();
            assert!(stream.read(&place) == sums, "all_reduce in place of {what}");

            let mut place = stream.clone_htod(&host).unwrap();
            communicator.reduce_in_place(&mut place, operator, size - 1).unwrap();
            let wanted = if rank == size - 1 { &sums } else { &host };
            assert!(stream.read(&place) == *wanted, "reduce of {what}");

            let mut part = stream.alloc_zeros::<T>(len).unwrap();
            communicator.reduce_scatter(&send, &mut part, operator).unwrap();
            let found = stream.read(&part);
            assert!(found == sums[rank * len..][..len], "reduce_scatter of {what}");
        }
        assert!(stream.read(&send) == host, "the input stays");
    }

    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        // With the last length, NCCL up to 2.29.3 skips an element on a single rank.
        for len in [LENGTHS[0], LENGTHS[1], LENGTHS[2], 4_097] {
            of_type::<f32>(communicator, len, seed);
            of_type::<f64>(communicator, len, seed);
            of_type::<f16>(communicator, len, seed);
            of_type::<bf16>(communicator, len, seed);
            of_type::<i32>(communicator, len, seed);
        }
    });
}

/// Operators of several communicators in one group.
pub(crate) fn scaled_sums_in_a_group() {
    const LEN: usize = 1_001;
    let gpus = Gpus::all();
    let party = gpus.together(&Config::new());
    let operators: Vec<_> =
        party.iter().map(|member| member.scaled_sum(member.rank() as f32).unwrap()).collect();
    let mut buffers: Vec<_> =
        party.iter().map(|member| member.stream().clone_htod(&[2.0f32; LEN]).unwrap()).collect();
    group(|group| {
        let mut ranks = party.iter().zip(&mut buffers).zip(&operators);
        ranks.try_for_each(|((member, buffer), operator)| {
            group.on(member).all_reduce_in_place(buffer, operator)
        })
    })
    .unwrap();
    let sum = (0..gpus.count).map(|rank| 2.0 * rank as f32).sum::<f32>();
    for (member, buffer) in party.iter().zip(&buffers) {
        assert_eq!(member.stream().read(buffer), [sum; LEN]);
    }
}

/// NCCL works on threads of its own: the results are the same.
pub(crate) fn non_blocking_communicators_give_the_same_results() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let config = Config::new().blocking(false).deadline(std::time::Duration::from_secs(60));
    gpus.ranks(&config, |communicator| {
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, LONGEST);
        check_all::<f32, _>(party, &mut rooms, Way::Alone, &LENGTHS, seed);
        check_all::<u8, _>(party, &mut rooms, Way::Grouped, &SHORT, seed);
    });
    let party = gpus.together(&config);
    works_together(&party, seed, Way::Grouped);
    works_together(&party, seed, Way::Nested);
    for member in party {
        member.close().unwrap();
    }
}
