//! Checks of the collectives beside all_reduce and all_gather.

use std::ops::Range;

use super::*;

/// Parameters of a check.
#[derive(Clone, Copy, Debug)]
pub(super) struct CollectiveCheck {
    pub(super) collective: Collective,
    /// Elements of a vector, block or part.
    pub(super) count: usize,
    pub(super) seed: u64,
    pub(super) op: ReduceOp,
    pub(super) root: usize,
}

pub(super) type Rank<'a> = &'a mut HostCollectives<Simulated>;

impl CollectiveCheck {
    fn input<T: Value>(&self, rank: usize, count: usize) -> Vec<T> {
        (0..count).map(|index| T::exact(random(self.seed, rank, index), self.op)).collect()
    }

    fn reduced<T: Value>(&self, ranks: usize, count: usize) -> Vec<T> {
        let inputs: Vec<Vec<T>> = (0..ranks).map(|rank| self.input(rank, count)).collect();
        let values = |index: usize| inputs.iter().map(|input| input[index]).collect::<Vec<_>>();
        (0..count).map(|index| T::reduced(&values(index), self.op)).collect()
    }

    /// Runs it out of place and in place, and checks all memory inside and outside of its output.
    pub(super) fn check<T: Value>(&self, collectives: Rank<'_>) {
        match self.collective {
            Collective::ReduceScatter => self.check_reduce_scatter::<T>(collectives),
            Collective::Broadcast => self.check_broadcast::<T>(collectives),
            Collective::Reduce => self.check_reduce::<T>(collectives),
            Collective::AllToAll => self.check_all_to_all::<T>(collectives),
            Collective::AllToAllV => self.check_all_to_all_v::<T>(collectives),
            Collective::Gather => self.check_gather::<T>(collectives),
            Collective::Scatter => self.check_scatter::<T>(collectives),
            Collective::AllReduce | Collective::AllGather => panic!("checked elsewhere"),
        }
    }

    fn check_reduce_scatter<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.own_rank(), collectives.rank_count(), self.count);
        let mut data = self.input::<T>(rank, count * ranks);
        let mut expected = data.clone();
        let own = rank * count..(rank + 1) * count;
        expected[own.clone()].copy_from_slice(&self.reduced(ranks, count * ranks)[own.clone()]);
        let mut received = vec![T::default(); count];
        collectives.reduce_scatter(&data, &mut received, self.op).unwrap();
        assert_same(&received, &expected[own]);
        collectives.reduce_scatter_in_place(&mut data, self.op).unwrap();
        assert_same(&data, &expected);
    }

    fn check_broadcast<T: Value>(&self, collectives: Rank<'_>) {
        let expected = self.input::<T>(self.root, self.count);
        let own = self.input::<T>(collectives.own_rank(), self.count);
        let send = (collectives.own_rank() == self.root || self.count.is_multiple_of(2)).then_some(&own[..]);
        let mut received = vec![T::default(); self.count];
        collectives.broadcast_from_root(send, &mut received, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = own.clone();
        collectives.broadcast_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_reduce<T: Value>(&self, collectives: Rank<'_>) {
        let (own, is_root) =
            (self.input::<T>(collectives.own_rank(), self.count), collectives.own_rank() == self.root);
        let expected = if is_root { self.reduced(collectives.rank_count(), self.count) } else { own.clone() };
        let mut received = own.clone();
        let receive = (is_root || self.count.is_multiple_of(2)).then_some(&mut received[..]);
        collectives.reduce_to_root(&own, receive, self.op, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = own;
        collectives.reduce_in_place(&mut data, self.op, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_all_to_all<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.own_rank(), collectives.rank_count(), self.count);
        let part = |from: usize| self.input::<T>(from, ranks * count)[rank * count..][..count].to_vec();
        let expected = (0..ranks).flat_map(part).collect::<Vec<_>>();
        let mut data = self.input::<T>(rank, ranks * count);
        let mut received = vec![T::default(); ranks * count];
        collectives.all_to_all(&data, &mut received).unwrap();
        assert_same(&received, &expected);
        collectives.all_to_all_in_place(&mut data).unwrap();
        assert_same(&data, &expected);
    }

    /// Elements of one rank's part for another, often 0.
    fn length(&self, from: usize, to: usize) -> usize {
        let random = random(self.seed, from * 64 + to, self.count) as usize;
        if random.is_multiple_of(3) { 0 } else { random % (2 * self.count + 1) }
    }

    /// Ranges of these lengths with gaps between them, in an order determined by the seed; and the end of the
    /// last.
    fn ranges(&self, lengths: &[usize]) -> (Vec<Range<usize>>, usize) {
        let mut ranges = vec![0..0; lengths.len()];
        let mut end = 0;
        for index in 0..lengths.len() {
            let rank = if self.seed.is_multiple_of(2) { index } else { lengths.len() - 1 - index };
            ranges[rank] = end..end + lengths[rank];
            end += lengths[rank] + index % 3;
        }
        (ranges, end)
    }

    fn check_all_to_all_v<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks) = (collectives.own_rank(), collectives.rank_count());
        let sent = |from: usize| -> Vec<usize> { (0..ranks).map(|to| self.length(from, to)).collect() };
        let (send_parts, send_len) = self.ranges(&sent(rank));
        let received: Vec<usize> = (0..ranks).map(|from| self.length(from, rank)).collect();
        let (receive_parts, receive_len) = self.ranges(&received);
        let len = send_len.max(receive_len);
        let mut data = self.input::<T>(rank, len);
        let expect = |mut buffer: Vec<T>| {
            for from in 0..ranks {
                let (parts, len) = self.ranges(&sent(from));
                let part = &self.input::<T>(from, len)[parts[rank].clone()];
                buffer[receive_parts[from].clone()].copy_from_slice(part);
            }
            buffer
        };
        let mut received = vec![T::default(); receive_len];
        let expected = expect(received.clone());
        collectives.all_to_all_v(&data[..send_len], &send_parts, &mut received, &receive_parts).unwrap();
        assert_same(&received, &expected);
        let expected = expect(data.clone());
        collectives.all_to_all_v_in_place(&mut data, &send_parts, &receive_parts).unwrap();
        assert_same(&data, &expected);
    }

    fn check_gather<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.own_rank(), collectives.rank_count(), self.count);
        let own = self.input::<T>(rank, count);
        let all = (0..ranks).flat_map(|rank| self.input::<T>(rank, count)).collect::<Vec<_>>();
        let mut received = vec![T::default(); ranks * count];
        let expected = if rank == self.root { all.clone() } else { received.clone() };
        let receive = (rank == self.root || count.is_multiple_of(2)).then_some(&mut received[..]);
        collectives.gather_to_root(&own, receive, self.root).unwrap();
        assert_same(&received, &expected);
        let mut data = vec![T::default(); ranks * count];
        data[rank * count..][..count].copy_from_slice(&own);
        let expected = if rank == self.root { all } else { data.clone() };
        collectives.gather_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }

    fn check_scatter<T: Value>(&self, collectives: Rank<'_>) {
        let (rank, ranks, count) = (collectives.own_rank(), collectives.rank_count(), self.count);
        let part = |rank: usize| rank * count..(rank + 1) * count;
        let all = self.input::<T>(self.root, ranks * count);
        let mut data = self.input::<T>(rank, ranks * count);
        let mut received = vec![T::default(); count];
        let send = (rank == self.root || count.is_multiple_of(2)).then_some(&data[..]);
        collectives.scatter_from_root(send, &mut received, self.root).unwrap();
        assert_same(&received, &all[part(rank)]);
        let mut expected = data.clone();
        expected[part(rank)].copy_from_slice(&all[part(rank)]);
        collectives.scatter_in_place(&mut data, self.root).unwrap();
        assert_same(&data, &expected);
    }
}
