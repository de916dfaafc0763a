use super::*;

#[test]
fn data_depends_on_seed_rank_and_index_but_not_on_where_a_fill_starts() {
    for data_type in DataType::ALL {
        for op in [None].into_iter().chain(Op::ALL.map(Some)) {
            let spec = DataSpec { seed: 42, ranks: 5, op, data_type };
            let size = data_type.size();
            let fill = |spec: &DataSpec, rank, first_index| {
                let mut bytes = vec![0; 64 * size];
                fill_input(spec, rank, first_index, &mut bytes).unwrap();
                bytes
            };
            // Indices beyond 2^32 elements.
            let start = (1 << 33) + 5;
            let bytes = fill(&spec, 2, start);
            assert_eq!(bytes[7 * size..], fill(&spec, 2, start + 7)[..57 * size]);
            assert_ne!(bytes, fill(&spec, 2, 5));
            assert_ne!(bytes, fill(&spec, 3, start));
            assert_ne!(bytes, fill(&DataSpec { seed: 43, ..spec }, 2, start));
        }
    }
}

#[test]
fn corruption_is_found_with_index_expected_and_found_value() {
    for data_type in DataType::ALL {
        let spec = DataSpec { seed: 8, ranks: 4, op: None, data_type };
        let size = data_type.size();
        let count = 33;
        let segments: Vec<_> = (0..4).map(|rank| ExpectedSegment::copied(rank, 10, count)).collect();
        let mut bytes = vec![0; 4 * count as usize * size];
        for (rank, part) in (0..).zip(bytes.chunks_exact_mut(count as usize * size)) {
            fill_input(&spec, rank, 10, part).unwrap();
        }
        assert_eq!(check(&spec, &segments, &bytes).unwrap(), Mismatches::default());
        for index in [0, 32, 33, 70, 4 * count as usize - 1] {
            let mut spoilt = bytes.clone();
            spoilt[index * size] ^= 1;
            let found = check(&spec, &segments, &spoilt).unwrap();
            let first = found.first.unwrap();
            assert_eq!((found.wrong, first.index), (1, index as u64));
            assert_eq!(first.expected_bits ^ first.found_bits, 1);
            let mut expected = [0; 8];
            expected[..size].copy_from_slice(&bytes[index * size..][..size]);
            assert_eq!(first.expected_bits, u64::from_le_bytes(expected));
            // The first of several wrong elements, in whichever segment.
            spoilt[(4 * count as usize - 1) * size] ^= 2;
            spoilt[60 * size] ^= 4;
            let found = check(&spec, &segments, &spoilt).unwrap();
            assert_eq!(found.first.unwrap().index, index.min(60) as u64);
        }
    }
}

/// Returns all bit patterns of NaNs for the 8-bit and 16-bit types, and some for wider types, including the
/// smallest and the largest.
fn nans(data_type: DataType) -> Vec<u64> {
    let of_both_signs = |bits: &[u64], sign: u64| bits.iter().flat_map(|bits| [*bits, bits | sign]).collect();
    match data_type {
        DataType::Float8E4M3 => of_both_signs(&[0x7f], 0x80),
        DataType::Float8E5M2 => of_both_signs(&[0x7d, 0x7e, 0x7f], 0x80),
        DataType::Float16 => of_both_signs(&(0x7c01..=0x7fff).collect::<Vec<_>>(), 0x8000),
        DataType::Bfloat16 => of_both_signs(&(0x7f81..=0x7fff).collect::<Vec<_>>(), 0x8000),
        DataType::Float32 => of_both_signs(&[0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff], 1 << 31),
        DataType::Float64 => {
            of_both_signs(&[0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0000, i64::MAX as u64], 1 << 63)
        }
        _ => Vec::new(),
    }
}

#[test]
fn a_nan_is_wrong_and_shown_as_such() {
    for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.is_float()) {
        let spec = |op, ranks| DataSpec { seed: 4, ranks, op, data_type };
        let mut problems: Vec<_> = Op::ALL.map(|op| spec(Some(op), 8)).to_vec();
        let many = [(1 << 17) - 1, 1 << 17, DataSpec::MAX_RANKS - 1, DataSpec::MAX_RANKS];
        problems.extend(
            (3..1100)
                .step_by(if data_type.size() == 1 { 1 } else { 100 })
                .chain(many)
                .map(|ranks| spec(Some(Op::Avg), ranks)),
        );
        let nans = nans(data_type);
        assert!(!nans.is_empty());
        for spec in problems {
            for index in 0..8 {
                for bits in nans.iter().skip(index as usize % 2) {
                    let received = &bits.to_le_bytes()[..data_type.size()];
                    for segment in [ExpectedSegment::reduced(index, 1), ExpectedSegment::copied(1, index, 1)]
                    {
                        let found = check(&spec, &[segment], received).unwrap();
                        assert_eq!(found.wrong, 1, "{spec:?} at {index}: 0x{bits:x}");
                        let text = found.first.unwrap().to_string();
                        let shown = format!(", found NaN (0x{bits:0width$x})", width = 2 * data_type.size());
                        assert!(text.ends_with(&shown), "{text}");
                        assert!(!text.contains("expected NaN"), "{text}");
                    }
                }
            }
        }
    }
}

/// In the order of bit patterns, the last NaN is next to the negative zero. Even with the largest tolerance,
/// no average is so small that a NaN comes within it.
#[test]
fn a_nan_is_wrong_beside_the_smallest_averages_with_the_largest_tolerance() {
    for (data_type, ranks) in [
        (DataType::Float8E4M3, (1 << 10) - 1),
        (DataType::Float8E5M2, (1 << 17) - 1),
        (DataType::Float16, DataSpec::MAX_RANKS),
        (DataType::Bfloat16, DataSpec::MAX_RANKS),
    ] {
        let spec = DataSpec { seed: 2, ranks, op: Some(Op::Avg), data_type };
        let last_nan = u64::MAX >> (65 - 8 * data_type.size());
        for index in 0..40_000 {
            let received = &last_nan.to_le_bytes()[..data_type.size()];
            let found = check(&spec, &[ExpectedSegment::reduced(index, 1)], received).unwrap();
            assert_eq!(found.wrong, 1, "{spec:?} at {index}");
        }
    }
}

#[test]
fn a_mismatch_shows_values_and_bits() {
    let show = |data_type, expected_bits, found_bits| {
        WrongElement { index: 17, expected_bits, found_bits, data_type }.to_string()
    };
    let f16_text = show(DataType::Float16, 0x4300, 0);
    assert_eq!(f16_text, "element 17: expected 3.5 (0x4300), found 0.0 (0x0000)");
    let i8_text = show(DataType::Int8, 0xff, 0x7f);
    assert_eq!(i8_text, "element 17: expected -1 (0xff), found 127 (0x7f)");
    let f64_text = show(DataType::Float64, 1e300_f64.to_bits(), f64::NAN.to_bits());
    assert_eq!(f64_text, "element 17: expected 1e300 (0x7e37e43c8800759c), found NaN (0x7ff8000000000000)");
    let e4m3_text = show(DataType::Float8E4M3, 0x38, 0xff);
    assert_eq!(e4m3_text, "element 17: expected 1.0 (0x38), found NaN (0xff)");
    let e4m3_text = show(DataType::Float8E4M3, 0xfe, 0x01);
    assert_eq!(e4m3_text, "element 17: expected -448.0 (0xfe), found 0.001953125 (0x01)");
    let e5m2_text = show(DataType::Float8E5M2, 0xfb, 0x7c);
    assert_eq!(e5m2_text, "element 17: expected -57344.0 (0xfb), found inf (0x7c)");
    let u64_text = show(DataType::Uint64, u64::MAX, 1);
    assert_eq!(
        u64_text,
        "element 17: expected 18446744073709551615 (0xffffffffffffffff), found 1 (0x0000000000000001)"
    );
}

#[test]
fn problems_that_are_not_defined_are_errors() {
    let spec = DataSpec { seed: 0, ranks: 2, op: None, data_type: DataType::Float32 };
    let fill = |spec: &DataSpec, rank, length| {
        fill_input(spec, rank, 0, &mut vec![0; length]).unwrap_err().to_string()
    };
    let most = "ranks; give 1 to 16777216 ranks";
    assert_eq!(fill(&DataSpec { ranks: 0, ..spec }, 0, 4), format!("test data: 0 {most}"));
    let many = DataSpec { ranks: DataSpec::MAX_RANKS + 1, ..spec };
    assert_eq!(fill(&many, 0, 4), format!("test data: 16777217 {most}"));
    assert!(fill(&spec, 2, 4).contains("rank 2 does not exist; there are 2 ranks"));
    assert!(fill(&spec, 0, 7).contains("the buffer has 7 bytes, but must have 4"));
    let check = |segments: &[ExpectedSegment], length| {
        check(&spec, segments, &vec![0; length]).unwrap_err().to_string()
    };
    assert!(check(&[ExpectedSegment::reduced(0, 1)], 4).contains("needs an operator"));
    let short = check(&[ExpectedSegment::copied(0, 0, 2), ExpectedSegment::copied(1, 0, 1)], 8);
    assert!(short.contains("has 8 bytes, but must have 12"), "{short}");
    let huge = check(&[ExpectedSegment::copied(0, 0, u64::MAX), ExpectedSegment::copied(1, 0, 9)], 8);
    assert!(huge.contains("has 8 bytes, but must have 18446744073709551615"), "{huge}");
}
