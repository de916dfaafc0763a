//! The command: arguments, files and refusals.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use nccl_bench::command::plot::{self};
use record::{BackendLibrary, Measurement, Placement, Run, Versus};

use crate::drawing::*;
use crate::runs::*;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    arguments: plot::PlotArguments,
}

/// Parses a command line, with paths in a folder.
fn arguments(folder: &Path, line: &str) -> plot::PlotArguments {
    let mut arguments =
        Line::try_parse_from(["plot"].into_iter().chain(line.split_whitespace())).unwrap().arguments;
    arguments.files.iter_mut().chain([&mut arguments.output]).for_each(|path| *path = folder.join(&path));
    arguments
}

/// Returns a run by the file's name.
fn read(path: &Path) -> anyhow::Result<Run> {
    match path.file_stem().unwrap().to_str().unwrap() {
        "missing" => anyhow::bail!("no such file"),
        "empty" => Ok(empty(2)),
        "gather" => Ok(all_gather()),
        "slow" => Ok(slower(&all_reduce(), 1.3)),
        _ => Ok(with_everything()),
    }
}

#[test]
fn the_command_writes_pages_and_drawings() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let written = plot::plot_files(&arguments(folder.path(), "a.json slow.json"), read).unwrap();
    assert_eq!(written, [at("nccl-bench.html")]);
    let page = fs::read_to_string(at("nccl-bench.html")).unwrap();
    assert_eq!(entries(parse(&page).root_element())[..2], ["a", "slow"]);
    let line =
        "a.json slow.json --output x.svg --split --metric busbw,time --metric algbw --label one --label two";
    let written = plot::plot_files(&arguments(folder.path(), line), read).unwrap();
    assert_eq!(written, ["busbw", "time", "algbw"].map(|metric| at(&format!("x-allreduce-{metric}.svg"))));
    let drawing = fs::read_to_string(&written[2]).unwrap();
    let document = parse(&drawing);
    assert!(text_of(document.root_element()).contains("allreduce: algorithm bandwidth"));
    assert!(all(document.root_element(), "entry").into_iter().map(text_of).any(|entry| entry == "two"));
    let line = "a.json sub/a.json --output y.SVG --title T&T --placement in --spread max --scale log";
    assert_eq!(plot::plot_files(&arguments(folder.path(), line), read).unwrap(), [at("y.SVG")]);
    let drawing = fs::read_to_string(at("y.SVG")).unwrap();
    let text = text_of(parse(&drawing).root_element());
    assert!(text.contains("T&T") && text.contains("sub/a.json") && text.contains("in-place"), "{text}");
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(names, 5, "nothing else is left behind");
}

#[test]
fn the_tables_of_a_log_are_one_run() {
    const ALL_REDUCE: &str = include_str!("../data/all_reduce_mpi.txt");
    const ALL_GATHER: &str = include_str!("../data/all_gather_mpi.txt");
    let folder = tempfile::tempdir().unwrap();
    let read = |path: &Path| Ok(record::matching::read_joined_run(path)?);
    fs::write(folder.path().join("two.log"), format!("$ ./run.sh\n{ALL_REDUCE}{ALL_GATHER}")).unwrap();
    let written =
        plot::plot_files(&arguments(folder.path(), "two.log --output x.svg --split"), read).unwrap();
    let names: Vec<_> = written.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    let expected =
        ["x-allreduce-busbw.svg", "x-allreduce-time.svg", "x-allgather-busbw.svg", "x-allgather-time.svg"];
    assert_eq!(names, expected);
    fs::write(folder.path().join("twice.log"), ALL_REDUCE.repeat(2)).unwrap();
    let error = plot::plot_files(&arguments(folder.path(), "twice.log"), read).unwrap_err();
    assert!(format!("{error:#}").contains("is in its runs 1 and 2: give each run a file of its own"));
}

#[test]
fn both_sides_of_a_run_are_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let two_sides = |_: &Path| {
        let mut run = all_reduce();
        run.provenance.backend = "fabric".to_owned();
        run.provenance.versus = Some(BackendLibrary {
            backend: "mpi".to_owned(),
            library_version: "Open MPI 4.1.4".to_owned(),
            library_path: String::new(),
        });
        for measurement in &mut run.measurements {
            measurement.versus = Some(Versus {
                time_us: 12_345.75,
                algbw_gbps: 1.0,
                busbw_gbps: 1.0,
                rounds_us: Vec::new(),
                wrong: None,
                mismatches: Vec::new(),
                ratio: measurement.time_us / 12_345.75,
                best_ratio: 1.0,
            });
        }
        Ok(run)
    };
    let drawn = |line: &str| {
        let written = plot::plot_files(&arguments(folder.path(), line), two_sides).unwrap();
        text_of(parse(&fs::read_to_string(&written[0]).unwrap()).root_element())
    };
    // By name, and with a number that only the other side has.
    for (line, drawn_sides, left_out) in [
        ("a.json", &["a (fabric)", "a (mpi)", "12345.8"][..], &[][..]),
        ("a.json --side other --label x", &["x (mpi)", "12345.8"], &["(fabric)"]),
        ("a.json --side own", &["a"], &["(fabric)", "(mpi)", "12345.8"]),
    ] {
        let text = drawn(line);
        for part in drawn_sides {
            assert!(text.contains(part), "{line}: no '{part}' in {text}");
        }
        for part in left_out {
            assert!(!text.contains(part), "{line}: '{part}' in {text}");
        }
    }
    let line = arguments(folder.path(), "a.json --side other");
    let error = plot::plot_files(&line, |_| Ok(all_reduce())).unwrap_err();
    assert!(format!("{error:#}").contains("a.json has no other side"), "{error:#}");
}

#[test]
fn only_an_earlier_plot_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.html");
    let refused =
        |line: &str| format!("{:#}", plot::plot_files(&arguments(folder.path(), line), read).unwrap_err());
    fs::write(&target, "<html>mine</html>").unwrap();
    let message = refused("a.json --output out.html");
    assert!(message.contains("is not a plot of nccl-bench") && message.contains("--force"), "{message}");
    assert_eq!(fs::read_to_string(&target).unwrap(), "<html>mine</html>");
    plot::plot_files(&arguments(folder.path(), "a.json --output out.html --force"), read).unwrap();
    let first = fs::read_to_string(&target).unwrap();
    plot::plot_files(&arguments(folder.path(), "slow.json --output out.html"), read).unwrap();
    assert_ne!(fs::read_to_string(&target).unwrap(), first);
    fs::create_dir(folder.path().join("folder.svg")).unwrap();
    assert!(refused("a.json --output folder.svg --force").contains("is not a file"));
    fs::write(folder.path().join("in.html"), "{}").unwrap();
    assert!(refused("in.html --output in.html --force").contains("holds results"));
    assert!(refused("a.json --output none/out.html").contains("cannot be written"));
    #[cfg(unix)]
    {
        let link: PathBuf = folder.path().join("link.html");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        plot::plot_files(&arguments(folder.path(), "a.json --output link.html"), read).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), first);
    }
    // Of several files none is written when one is refused.
    fs::write(folder.path().join("s-allreduce-time.svg"), "mine").unwrap();
    assert!(refused("a.json --output s.svg --split").contains("s-allreduce-time.svg exists"));
    assert!(!folder.path().join("s-allreduce-busbw.svg").exists());
}

/// The chunks of a PNG file: type and data.
fn chunks(file: &[u8]) -> Vec<(String, Vec<u8>)> {
    assert_eq!(&file[..8], b"\x89PNG\r\n\x1a\n");
    let (mut rest, mut found) = (&file[8..], Vec::new());
    while !rest.is_empty() {
        let length = u32::from_be_bytes(rest[..4].try_into().unwrap()) as usize;
        let mut checksum = flate2::Crc::new();
        checksum.update(&rest[4..8 + length]);
        assert_eq!(rest[8 + length..12 + length], checksum.sum().to_be_bytes());
        found.push((String::from_utf8(rest[4..8].to_vec()).unwrap(), rest[8..8 + length].to_vec()));
        rest = &rest[12 + length..];
    }
    found
}

#[test]
fn a_picture_has_the_texts_of_the_drawing_without_fonts_of_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let picture = |title: &str| {
        let mut arguments = arguments(folder.path(), "a.json --output out.png");
        arguments.options.title = Some(title.to_owned());
        plot::plot_files(&arguments, read).unwrap();
        fs::read(folder.path().join("out.png")).unwrap()
    };
    let first = picture("first title");
    let of_first = chunks(&first);
    assert_eq!(of_first.iter().filter(|(name, _)| name == "IEND").count(), 1);
    let comment = of_first.iter().find(|(name, _)| name == "tEXt").unwrap();
    assert_eq!(comment.1, b"Comment\0<!-- made by nccl-bench plot -->\n");
    let side = |at: usize| u32::from_be_bytes(of_first[0].1[at..at + 4].try_into().unwrap());
    assert!(side(0) > 1000 && side(4) > 500, "{} x {}", side(0), side(4));
    // Replaces its own file. Text that is not drawn would leave the picture as it is.
    assert_eq!(picture("first title"), first);
    assert_ne!(picture("other title"), first);
    let split = plot::plot_files(&arguments(folder.path(), "a.json --output s.png --split"), read).unwrap();
    assert!(split.iter().any(|path| path.ends_with("s-allreduce-time.png")), "{split:?}");
    for path in split {
        chunks(&fs::read(path).unwrap());
    }
}

#[test]
fn a_picture_of_more_pixels_than_programs_show_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let of_roots = |_: &Path| {
        let one = measurement("broadcast", Placement::OutOfPlace, 1024, 10.0, 50.0);
        let roots = (0..64).map(|root| Measurement { root: Some(root), ..one.clone() });
        Ok(Run { measurements: roots.collect(), ..empty(2) })
    };
    let error = plot::plot_files(&arguments(folder.path(), "a.json --output out.png"), of_roots).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("the picture is too large, with 2728 x ") && text.contains("--split"), "{text}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    plot::plot_files(&arguments(folder.path(), "a.json --output out.svg"), of_roots).unwrap();
}

#[test]
fn bad_requests_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    for (line, expected) in [
        ("missing.json a.json x/missing.json", "2 files cannot be read"),
        ("missing.json", "missing.json: no such file"),
        ("empty.json", "measure first"),
        ("a.json --output out.txt", "must end in .html (a page), .svg (a drawing) or .png (a picture)"),
        (
            "a.json --output out.pdf",
            "out.pdf is not written: name a drawing (.svg), and convert it, as with rsvg-convert",
        ),
        ("a.json --output out.html --split", "name one, as in --output"),
        ("a.json slow.json --label one", "there are 1 label for 2 files; give one --label per file"),
    ] {
        let message = format!("{:#}", plot::plot_files(&arguments(folder.path(), line), read).unwrap_err());
        assert!(message.contains(expected), "{line}: {message}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    assert!(Line::try_parse_from(["plot"]).is_err());
    assert!(Line::try_parse_from(["plot", "a.json", "--metric", "speed"]).is_err());
}
