//! Places of gradients in buckets.

use std::ops::Range;

/// Place of a parameter's gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParameterPlace {
    pub(super) bucket: usize,
    /// The elements of the bucket.
    pub(super) range: Range<usize>,
}

/// Assignment of parameters to buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// By parameter.
    pub(super) places: Vec<ParameterPlace>,
    /// Elements and parameters of each bucket.
    pub(super) buckets: Vec<Size>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) elements: usize,
    pub(super) parameters: usize,
}

/// Numbers of elements at which a bucket is full: the first one, and the others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) first: usize,
    pub(super) others: usize,
}

impl Layout {
    /// Puts parameters of these numbers of elements into buckets, in an `order` that names each parameter
    /// once.
    pub(super) fn new(lens: &[usize], order: impl IntoIterator<Item = usize>, limits: Limits) -> Self {
        let mut places = vec![ParameterPlace { bucket: 0, range: 0..0 }; lens.len()];
        let mut buckets: Vec<Size> = Vec::new();
        let mut open = None;
        for parameter in order {
            let (Some(&len), Some(place)) = (lens.get(parameter), places.get_mut(parameter)) else {
                continue;
            };
            let mut size: Size = open.take().unwrap_or_default();
            *place = ParameterPlace { bucket: buckets.len(), range: size.elements..size.elements + len };
            size = Size { elements: size.elements + len, parameters: size.parameters + 1 };
            let limit = if buckets.is_empty() { limits.first } else { limits.others };
            if size.elements >= limit.max(1) { buckets.push(size) } else { open = Some(size) }
        }
        buckets.extend(open);
        Self { places, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { first: 10, others: 100 };

    fn place(bucket: usize, range: Range<usize>) -> ParameterPlace {
        ParameterPlace { bucket, range }
    }

    #[test]
    fn the_first_bucket_is_small_and_a_bucket_ends_with_the_parameter_that_fills_it() {
        let lens = [70, 60, 30, 8, 4];
        let layout = Layout::new(&lens, (0..5).rev(), LIMITS);
        let expected = [place(2, 0..70), place(1, 30..90), place(1, 0..30), place(0, 4..12), place(0, 0..4)];
        assert_eq!(layout.places[3..], expected[3..]);
        assert_eq!(layout.places[1..3], expected[1..3]);
        // 90 elements are below the limit, so that the next parameter comes into the same bucket.
        assert_eq!(layout.places[0], place(1, 90..160));
        assert_eq!(
            layout.buckets,
            [Size { elements: 12, parameters: 2 }, Size { elements: 160, parameters: 3 }]
        );
    }

    #[test]
    fn another_order_gives_other_places() {
        let layout = Layout::new(&[20, 5, 100], [1, 0, 2], LIMITS);
        assert_eq!(layout.places, [place(0, 5..25), place(0, 0..5), place(1, 0..100)]);
    }

    #[test]
    fn empty_parameters_and_limits_of_zero_make_no_empty_first_bucket() {
        let layout = Layout::new(&[0, 3, 0], 0..3, Limits { first: 0, others: 0 });
        assert_eq!(layout.places, [place(0, 0..0), place(0, 0..3), place(1, 0..0)]);
        assert_eq!(
            layout.buckets,
            [Size { elements: 3, parameters: 2 }, Size { elements: 0, parameters: 1 }]
        );
        assert!(Layout::new(&[], 0..0, LIMITS).buckets.is_empty());
    }
}
