use super::*;
use std::io::Write as _;

fn algorithm(algorithm: &str, protocol: Option<&str>, channels: Option<u32>) -> Algorithm {
    Algorithm { algorithm: algorithm.to_owned(), protocol: protocol.map(str::to_owned), channels }
}

fn said(collective: Option<&str>, bytes: Bytes, algorithm: Algorithm) -> Option<Choice> {
    Some(Choice { collective: collective.map(str::to_owned), bytes, algorithm })
}

#[test]
fn each_version_of_the_line_is_understood() {
    let line = |message: &str| parse_line(&format!("vm:4422:4430 [0] NCCL INFO {message}"));
    assert_eq!(
        line("8192 Bytes -> Algo 1 proto 0 time 12.300000"),
        said(None, Bytes::Larger(8192), algorithm("ring", Some("ll"), None))
    );
    assert_eq!(
        line("AllGather: 1048576 Bytes -> Algo 6 proto 2 time 31.000000"),
        said(Some("allgather"), Bytes::Larger(1 << 20), algorithm("pat", Some("simple"), None))
    );
    assert_eq!(
        line("AllReduce: 8192 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}"),
        said(Some("allreduce"), Bytes::Count(8192), algorithm("tree", Some("ll"), Some(4)))
    );
    assert_eq!(
        line(
            "ReduceScatter: 64 Bytes -> Algo NVLS_TREE proto SIMPLE channel{Lo..Hi}={8..8} cgaClusterSize 4"
        ),
        said(Some("reducescatter"), Bytes::Count(64), algorithm("nvls_tree", Some("simple"), Some(1)))
    );
    assert_eq!(
        line("Broadcast: 64 Bytes -> Algo COLLNET_CHAIN proto LL128 channel{Lo..Hi}={0..15}"),
        said(Some("broadcast"), Bytes::Count(64), algorithm("collnet_chain", Some("ll128"), Some(16)))
    );
    assert_eq!(
        line("AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512"),
        said(Some("allreduce"), Bytes::Count(4096), algorithm("AllReduce_AGxLL_R", None, Some(8)))
    );
    assert_eq!(
        line("AllGather [Symmetric]: 4096 Bytes -> Kernel AllGather_ST nchannels 16 nthreads 512 nWorks 4"),
        said(Some("allgather"), Bytes::Count(1024), algorithm("AllGather_ST", None, Some(16)))
    );
    assert_eq!(
        line("AlltoAll [Copy Engine]: 4096 Bytes -> cudaMemcpy; CE synchronization with NVLS"),
        said(Some("alltoall"), Bytes::Count(4096), algorithm("copy_engine", None, None))
    );
    assert_eq!(
        line("AllGather [Hierarchical CE]: 4096 Bytes -> Rail Ring RMA proxy + CE"),
        said(Some("allgather"), Bytes::Count(4096), algorithm("hierarchical_copy_engine", None, None))
    );
    // A later algorithm keeps its number or name.
    assert_eq!(
        line("8 Bytes -> Algo 9 proto 7 time 1.0"),
        said(None, Bytes::Larger(8), algorithm("9", Some("7"), None))
    );
}

#[test]
fn a_line_within_a_row_of_the_table_is_understood_as_nccl_wrote_it_on_eight_gpus() {
    let line = "     1048576        262144     float     sum      -1vm:4422:4422 [0] NCCL INFO AllReduce: \
                1048576 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..23}";
    assert_eq!(
        parse_line(line),
        said(Some("allreduce"), Bytes::Count(1 << 20), algorithm("ring", Some("ll"), Some(24)))
    );
}

#[test]
fn other_lines_are_left_out() {
    for line in [
        "",
        "vm:4422:4422 [0] NCCL INFO NCCL version 2.28.9+cuda13.0",
        "vm:4422:4422 [0] NCCL INFO   Algorithm   |      Tree      |      Ring      |",
        "vm:1:1 [0] NCCL INFO AllReduce: tuner chunk size 9 exceeds buffer max 8, clamping",
        "vm:1:1 [0] NCCL INFO AllReduce: many Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        "vm:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING",
        "vm:1:1 [0] NCCL INFO AllReduce [Other]: 8 Bytes -> Algo RING proto LL",
        "vm:1:1 [0] NCCL INFO AllReduce [Symmetric: 8 Bytes -> Kernel X",
        "vm:1:1 [0] NCCL INFO a b: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..3}",
        "AllReduce: 8192 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..3}",
    ] {
        assert_eq!(parse_line(line), None, "{line}");
    }
    let backwards = parse_line("x NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={3..0}");
    assert_eq!(backwards.unwrap().algorithm.channels, None);
}

/// Opens the log and writes a line, as NCCL does.
fn write(path: &str, mode: &str, text: &str) {
    let mut options = fs::OpenOptions::new();
    match mode {
        "w" => options.write(true).create(true).truncate(true),
        _ => options.append(true),
    };
    options.open(path).unwrap().write_all(text.as_bytes()).unwrap();
}

const RING: &str = "vm:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}\n";
const TREE: &str = "vm:1:1 [0] NCCL INFO AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}\n";

fn names(log: &mut Log) -> Vec<(String, u64)> {
    let choices = log.read_choices().unwrap();
    choices.into_iter().map(|(choice, times)| (choice.algorithm.algorithm, times)).collect()
}

#[test]
fn a_log_of_its_own_is_read_as_it_grows() {
    let (mut log, variables) = Log::prepare_log(&|_| None).unwrap();
    let names_set: Vec<_> = variables.iter().map(|(name, _)| *name).collect();
    assert_eq!(names_set, VARIABLES);
    assert_eq!((variables[0].1.as_str(), variables[1].1.as_str()), ("INFO", "TUNING"));
    let mut nccl = fs::OpenOptions::new().write(true).truncate(true).open(&variables[2].1).unwrap();
    nccl.write_all(RING.as_bytes()).unwrap();
    log.skip_lines().unwrap();
    assert_eq!(names(&mut log), []);
    nccl.write_all([TREE, RING, TREE].concat().as_bytes()).unwrap();
    let (begin, end) = RING.split_at(30);
    nccl.write_all(begin.as_bytes()).unwrap();
    assert_eq!(names(&mut log), [("ring".to_owned(), 1), ("tree".to_owned(), 2)]);
    nccl.write_all(end.as_bytes()).unwrap();
    assert_eq!(names(&mut log), [("ring".to_owned(), 1)]);
    // More than one buffer, with lines across its end. The memory of the read part is free again.
    nccl.write_all(TREE.repeat(5000).as_bytes()).unwrap();
    assert_eq!(names(&mut log), [("tree".to_owned(), 5000)]);
    let LogFile::Own(file) = &log.source else { panic!("its own") };
    assert!(
        file.metadata().unwrap().blocks() * 512 <= rustix::param::page_size() as u64,
        "{:?}",
        file.metadata()
    );
}

#[test]
fn the_users_log_is_left_alone_and_read_where_it_can_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log.%p");
    let pattern = path.to_str().unwrap().to_owned();
    let real = pattern.replace("%p", &std::process::id().to_string());
    let settings = |name: &str| match name {
        "NCCL_DEBUG" => Some("info".to_owned()),
        "NCCL_DEBUG_SUBSYS" => Some("INIT,tuning".to_owned()),
        "NCCL_DEBUG_FILE" => Some(pattern.clone()),
        _ => None,
    };
    let (mut log, variables) = Log::prepare_log(&settings).unwrap();
    assert_eq!(variables, []);
    assert_eq!(names(&mut log), [], "nobody has made it yet");
    write(&real, "w", &RING.repeat(9));
    log.skip_lines().unwrap();
    // It was from another run, and NCCL starts its own.
    write(&real, "w", RING);
    assert_eq!(names(&mut log), [("ring".to_owned(), 1)]);
    log.skip_lines().unwrap();
    write(&real, "a", TREE);
    assert_eq!(names(&mut log), [("tree".to_owned(), 1)]);
    assert_eq!(fs::read_to_string(&real).unwrap(), [RING, TREE].concat());
}

#[test]
fn a_log_that_cannot_be_read_says_why() {
    let refused = |settings: &[(&str, &str)]| {
        let found =
            |name: &str| settings.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Log::prepare_log(&found).unwrap_err().to_string()
    };
    let info = ("NCCL_DEBUG", "INFO");
    assert!(refused(&[("NCCL_DEBUG", "WARN")]).contains("NCCL_DEBUG=WARN is set"));
    assert!(refused(&[info]).contains("lacks TUNING"));
    assert!(refused(&[info, ("NCCL_DEBUG_SUBSYS", "INIT,NET")]).contains("lacks TUNING"));
    assert!(refused(&[info, ("NCCL_DEBUG_SUBSYS", "ALL")]).contains("goes to standard output"));
    let device = [info, ("NCCL_DEBUG_SUBSYS", "ALL"), ("NCCL_DEBUG_FILE", "/dev/null")];
    assert!(refused(&device).contains("goes to /dev/null"));
}

#[test]
fn settings_are_read_as_nccl_reads_them() {
    for (subsystems, has) in [
        ("TUNING", true),
        ("INIT,ALL", true),
        ("^NET", true),
        ("^TUNING", false),
        ("^ALL", false),
        ("", false),
    ] {
        assert_eq!(has_tuning(subsystems), has, "{subsystems}");
    }
    assert_eq!(expand_path("/a/%h.%p%%%x%", "node1.cluster", 77), "/a/node1.77%%x%");
}
