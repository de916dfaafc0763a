use super::foot::memory_text;
use super::number::format_float;
use super::*;
use engine::data::traffic::{Matrix, Pattern};
use jiff::tz::TimeZone;
use record::sample::row as sample;
use record::statistics::Statistics;
use record::{Algorithm, Placement, Versus};

#[test]
fn numbers_print_as_c_prints_them() {
    for (value, expected) in [
        (9.87, "   9.87"),
        (99999.96, " 100000"),
        (10357.4, "10357.4"),
        (9_999_999.6, "1.0e+07"),
        (f64::NAN, "    nan"),
        (f64::INFINITY, "    inf"),
    ] {
        assert_eq!(format_float(value, 7), expected);
    }
    assert_eq!(format_float(1e7, 6), " 1e+07");
    for (value, expected) in [
        (0.0, "0"),
        (118.406_4, "118.406"),
        (999_999.0, "999999"),
        (12_345_678.0, "1.23457e+07"),
        (1_000_000.0, "1e+06"),
        (0.000_012_5, "1.25e-05"),
        (123.5, "123.5"),
        (f64::NAN, "nan"),
    ] {
        assert_eq!(format_significant(value), expected);
    }
}

#[test]
fn memory_has_about_three_digits() {
    for (bytes, expected) in [
        (0, "0.00 B"),
        (1023, "1023 B"),
        (1024, "1.00 KB"),
        (20 << 20, "20.0 MB"),
        (403_701_760, "385 MB"),
        (3 << 29, "1.50 GB"),
        (4 << 40, "4096 GB"),
    ] {
        assert_eq!(memory_text(bytes), expected);
    }
}

#[test]
fn ncclls_number_of_a_version() {
    for (version, code) in [
        ("2.28.9", Some(22809)),
        ("2.18.1+cuda12.2", Some(21801)),
        ("2.28", None),
        ("unknown", None),
        ("", None),
    ] {
        assert_eq!(nccl_code(version), code, "{version}");
    }
}

#[test]
fn ninety_percent_of_the_asked_bandwidth_are_enough_and_no_number_is_not() {
    assert_eq!(is_enough(90.0, Some(100.0)), Some(true));
    assert_eq!(is_enough(89.0, Some(100.0)), Some(false));
    assert_eq!(is_enough(f64::NAN, Some(100.0)), Some(false));
    assert_eq!(is_enough(f64::NAN, None), None);
}

#[test]
fn an_operator_is_shown_as_the_program_of_nccl_tests_shows_it() {
    let mut measurement = sample::bare_measurement("sendrecv", Placement::OutOfPlace);
    assert_eq!(operator_cell(&measurement), "sum");
    for (collective, expected) in [("allgather", "none"), ("hypercube", ""), ("alltoallv", "none")] {
        measurement.collective = collective.to_owned();
        assert_eq!(operator_cell(&measurement), expected);
    }
    measurement.op = Some("prod".to_owned());
    assert_eq!(operator_cell(&measurement), "prod");
}

#[test]
fn own_columns_stand_behind_the_thirteen_and_under_their_names() {
    let mut first = sample::bare_measurement("allreduce", Placement::OutOfPlace);
    let mut second = sample::bare_measurement("allreduce", Placement::InPlace);
    first.statistics = Statistics::from_times(&[1.0, 2.0, 4.0]);
    (first.wrong, second.wrong) = (None, None);
    let ring =
        Algorithm { algorithm: "ring".to_owned(), protocol: Some("ll".to_owned()), channels: Some(16) };
    first.algorithm = Some(ring.clone());
    second.versus = Some(Versus {
        time_us: 12.5,
        algbw_gbps: 40.0,
        busbw_gbps: 60.0,
        rounds_us: Vec::new(),
        wrong: None,
        mismatches: Vec::new(),
        ratio: 0.8,
        best_ratio: 0.75,
    });
    for columns in [
        Columns::default(),
        Columns { time_stamps: true, ..Columns::default() },
        Columns { per_iteration: true, ..Columns::default() },
    ] {
        let plain = columns.format_row(Some(&first), Some(&second), &TimeZone::UTC);
        let columns = Columns { statistics: true, versus: true, algorithm: true, ..columns };
        let row = columns.format_row(Some(&first), Some(&second), &TimeZone::UTC);
        let own = row.strip_prefix(&plain).unwrap();
        let own: Vec<&str> = own.split_whitespace().collect();
        let (none, versus) = (["N/A"; 4], ["12.50", "60.00", "0.80", "0.75"]);
        assert_eq!(own[..6], ["1.00", "2.00", "4.00", "N/A", "N/A", "N/A"]);
        assert_eq!(own[6..], [&none[..], &versus, &["ring/ll/16"]].concat());
        let head = columns.format_head();
        let lines: Vec<&str> = head.lines().collect();
        let all = [("i_med", "2.00"), ("best", "0.75"), ("algo/proto/channels", "ring/ll/16")];
        for (name, value) in all {
            let found = if name == "best" { lines[2].rfind(name) } else { lines[2].find(name) };
            let end = found.unwrap() + name.len();
            assert!(row[..end].ends_with(value), "{head}{row}");
        }
        assert!(lines[3].trim_end().ends_with("(us)   (GB/s)"), "{head}");
        let over = lines[1].find("versus, in-place").unwrap();
        assert!(row.rfind("N/A").unwrap() < over && over < row.find("60.00").unwrap(), "{head}{row}");
    }
    second.algorithm = Some(Algorithm { protocol: None, channels: None, ..ring });
    let columns = Columns { algorithm: true, ..Columns::default() };
    let row = columns.format_row(Some(&first), Some(&second), &TimeZone::UTC);
    assert!(row.ends_with("  ring/ll/16|ring/-/-"), "{row}");
}

#[test]
fn devices_without_an_ordinal_have_their_name_alone() {
    let mut ranks = sample::bare_run().ranks;
    ranks.truncate(1);
    (ranks[0].device, ranks[0].pci, ranks[0].device_name) = (None, None, "host memory".to_owned());
    assert!(
        device_list(&ranks)
            .ends_with("\n#  Rank  0 Group  0 Pid     11 on     node01 host memory processors 0-3 NUMA 0\n")
    );
}

#[test]
fn the_first_line_names_the_library_as_its_backend_does() {
    let mut run = sample::bare_run();
    assert_eq!(version_line(&run), "# nccl-bench version 1.2.3 nccl-library=22809\n");
    run.provenance.backend = "fabric".to_owned();
    run.provenance.library_version = "1.22.0".to_owned();
    assert_eq!(version_line(&run), "# nccl-bench version 1.2.3 fabric-library=1.22.0\n");
}

#[test]
fn an_alltoallv_summary_has_each_ranks_share() {
    assert_eq!(
        alltoallv_summary(&Pattern::Spread(1.0), 4096, 2.0, &[(1000, 3000), (2000, 0)]),
        "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=generated nranks=2 total_bytes=4096 spread=1.000 \
         time_usec=2.00\n\
         \x20 rank=0 send_bytes=1000 recv_bytes=3000 alg_bw=1.50 bus_bw=0.75\n\
         \x20 rank=1 send_bytes=2000 recv_bytes=0 alg_bw=1.00 bus_bw=0.50\n"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0 32\n32 0\n").unwrap();
    let matrix = Pattern::Matrix(Matrix::read_file(file.path(), 0.5).unwrap());
    assert!(alltoallv_summary(&matrix, 0, 1.0, &[(16, 16)]).starts_with(
        "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY: mode=matrix nranks=1 matrix_dim=2 scale=0.500 time_usec=1.00\n"
    ));
}

#[test]
fn times_are_in_the_zone_that_is_asked_for() {
    let zone = TimeZone::fixed(jiff::tz::offset(-7));
    assert_eq!(local_time("2026-11-22T03:30:00.123Z", &zone), "2026-11-21 20:30:00");
    assert_eq!(local_time("yesterday", &zone), "yesterday");
}
