//! Processors that ranks may run on.

/// Affinity mask of this thread, a bit for each processor; empty if the system call fails.
pub(super) fn thread_affinity() -> Vec<u8> {
    // SAFETY: the set consists of numbers, zero is a value of them; the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0).then_some(set)
    };
    let Some(set) = set else { return Vec::new() };
    // SAFETY: the numbers of a byte's processors are within the set.
    let is_set = |cpu| unsafe { libc::CPU_ISSET(cpu, &set) };
    let byte = |first| (0..8).fold(0, |byte, bit| byte | u8::from(is_set(first + bit)) << bit);
    (0..size_of_val(&set)).map(|index| byte(8 * index)).collect()
}

/// Number of processors in the union of masks.
fn count_processors<'a>(masks: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut all: Vec<u8> = Vec::new();
    for mask in masks {
        all.resize(mask.len().max(all.len()), 0);
        all.iter_mut().zip(mask).for_each(|(all, byte)| *all |= byte);
    }
    all.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// Number of processors available to the ranks with these masks together.
pub(super) fn available_processors<'a>(masks: impl Iterator<Item = &'a [u8]>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    match count_processors(masks) {
        0 => available,
        // The quota of a container may be lower than its number of processors.
        processors if available < count_processors([thread_affinity()].iter().map(Vec::as_slice)) => {
            processors.min(available)
        }
        processors => processors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_of_ranks_that_are_bound_count_together() {
        let count_processors = |masks: &[&[u8]]| super::count_processors(masks.iter().copied());
        assert_eq!(count_processors(&[&[1], &[2]]), 2);
        assert_eq!(count_processors(&[&[2, 0], &[2]]), 1);
        assert_eq!(count_processors(&[&[0x0f], &[0xf0, 0x81]]), 10);
        assert_eq!(count_processors(&[&[], &[]]), 0);
        let own = thread_affinity();
        assert!(
            (1..=count_processors(&[&own])).contains(&available_processors([own.as_slice()].into_iter()))
        );
    }
}
