use super::*;
use crate::world::limits::MAX_RANKS;

fn config(variables: &[(&str, &str)]) -> Result<RendezvousConfig, Error> {
    RendezvousConfig::from_variables(&|name| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

fn message(variables: &[(&str, &str)]) -> String {
    config(variables).unwrap_err().to_string()
}

#[test]
fn addresses_have_a_host_and_a_port() {
    let at = |address| {
        RendezvousConfig::new(0, 2, address).map(|config| (config.hosts[0].clone(), config.ports[0]))
    };
    assert_eq!(at("node1:80").unwrap(), ("node1".to_owned(), 80));
    assert_eq!(at("[fd00::1]:29500").unwrap(), ("fd00::1".to_owned(), 29500));
    for wrong in ["node1", "node1:", ":80", "node1:0", "node1:65536", "fd00::1:80", "[]:80"] {
        assert!(at(wrong).is_err(), "{wrong}");
    }
    assert!(RendezvousConfig::new(2, 2, "a:1").unwrap_err().to_string().contains("rank 2 of 2"));
}

#[test]
fn more_ranks_than_a_job_can_have_are_refused() {
    assert!(RendezvousConfig::new(0, MAX_RANKS, "a:1").is_ok());
    for size in [MAX_RANKS + 1, 4_000_000_000, usize::MAX] {
        let text = RendezvousConfig::new(0, size, "a:1").unwrap_err().to_string();
        assert!(text.starts_with(&format!("{size} ranks are more than the 262144 of")), "{text}");
        assert!(text.contains("NCCL_BENCH_SIZE"), "{text}");
    }
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "4000000000"), ("MASTER_ADDR", "a")];
    assert!(message(&torchrun).starts_with("4000000000 ranks are more"));
}

#[test]
fn the_port_of_torchrun_itself_is_not_used() {
    let common = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("MASTER_ADDR", "node1"),
        ("MASTER_PORT", "29400"),
    ];
    let plain = config(&common).unwrap();
    assert_eq!((plain.rank, plain.size, plain.local), (3, 4, Some((1, 2))));
    assert_eq!((plain.hosts, plain.ports), (vec!["node1".to_owned()], vec![29400]));
    let elastic = config(&[&common[..], &[("TORCHELASTIC_RUN_ID", "abc")]].concat()).unwrap();
    assert_eq!(elastic.ports, (29401..=29408).collect::<Vec<u16>>());
    assert_ne!(elastic.key, plain.key);
}

#[test]
fn slurm_names_the_first_host_and_a_port_of_its_own() {
    let step = |id| {
        config(&[
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", id),
            ("SLURM_JOB_NODELIST", "gpu[03-04,7]"),
            ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.9"),
        ])
        .unwrap()
    };
    let (first, second) = (step("0"), step("1"));
    assert_eq!((first.rank, first.size), (5, 8));
    assert_eq!(first.hosts, ["gpu03", "10.0.0.9"]);
    assert_eq!(first.ports.len(), usize::from(CANDIDATES));
    assert!(first.ports.iter().all(|port| (20_000..30_000).contains(port)));
    assert_ne!((first.key, first.ports), (second.key, second.ports));
}

#[test]
fn an_mpi_launcher_on_one_host_needs_no_address() {
    let common = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PMIX_NAMESPACE", "12345"),
    ];
    let one = config(&[&common[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat()).unwrap();
    assert_eq!((one.hosts, one.local), (vec!["127.0.0.1".to_owned()], Some((1, 2))));
    let several = [&common[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]].concat();
    let parsed = message(&several);
    for part in ["nor that all 2 ranks are on this host", "mpirun -x NCCL_BENCH_ADDR=node1:29500", "join_mpi"]
    {
        assert!(parsed.contains(part), "{parsed}");
    }
}

#[test]
fn pods_use_the_address_of_pod_zero() {
    let pod = [("JOB_COMPLETION_INDEX", "1"), ("NCCL_BENCH_SIZE", "2")];
    let parsed = |more: &[(&str, &str)]| config(&[&pod[..], more].concat()).unwrap();
    let given = parsed(&[("NCCL_BENCH_ADDR", "bench-0.bench:29500")]);
    assert_eq!((given.rank, given.size, given.local), (1, 2, None));
    assert_eq!((given.hosts, given.ports), (vec!["bench-0.bench".to_owned()], vec![29500]));
    let master = parsed(&[("MASTER_ADDR", "bench-0.bench"), ("MASTER_PORT", "7")]);
    assert_eq!((master.hosts, master.ports), (vec!["bench-0.bench".to_owned()], vec![7]));
    assert_eq!(parsed(&[("MASTER_ADDR", "bench-0.bench")]).ports, [MASTER_PORT]);
    // A Job of one needs no address.
    let one = [("JOB_COMPLETION_INDEX", "0"), ("WORLD_SIZE", "1")];
    assert_eq!(config(&one).unwrap().size, 1);
}

#[test]
fn errors_give_the_missing_part_of_a_pod_template() {
    let pod = |index, more: &[(&str, &str)]| message(&[&[("JOB_COMPLETION_INDEX", index)], more].concat());
    for part in
        ["pod 3 of an indexed Job", "{name: NCCL_BENCH_SIZE, value: \"2\"}", "`Options::kind = Kind::Single`"]
    {
        assert!(pod("3", &[]).contains(part), "{}", pod("3", &[]));
    }
    let address = pod("0", &[("NCCL_BENCH_SIZE", "2")]);
    assert!(address.contains("value: \"JOB-0.SERVICE:29500\""), "{address}");
    assert!(pod("x", &[]).contains("JOB_COMPLETION_INDEX is `x`"));
    assert!(pod("1", &[("WORLD_SIZE", "x")]).contains("WORLD_SIZE is `x`"));
    let beyond = [("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", "a:1")];
    assert!(pod("2", &beyond).contains("rank 2 of 2"));
}

#[test]
fn mpich_ranks_of_several_hosts_have_one_key() {
    let config = config(&[
        ("PMI_RANK", "1"),
        ("PMI_SIZE", "2"),
        ("PMI_FD", "3"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "1"),
        ("NCCL_BENCH_ADDR", "a:1"),
    ])
    .unwrap();
    assert_eq!((config.key.as_str(), config.hosts, config.ports), ("", vec!["a".to_owned()], vec![1]));
}

#[test]
fn an_explicit_address_and_key_override_others() {
    let given = config(&[
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("TORCHELASTIC_RUN_ID", "x"),
        ("NCCL_BENCH_ADDR", "h:7"),
        ("NCCL_BENCH_KEY", "k"),
    ])
    .unwrap();
    assert_eq!((given.hosts, given.ports, given.key), (vec!["h".to_owned()], vec![7], "k".to_owned()));
}

#[test]
fn keys_with_control_characters_are_refused() {
    let keyed = |key| {
        let common = [("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "2"), ("NCCL_BENCH_ADDR", "h:7")];
        config(&[&common[..], &[("NCCL_BENCH_KEY", key)]].concat())
    };
    // Read from a file; white space counts as unset.
    assert_eq!(keyed(" our job\r\n").unwrap().key, "our job");
    assert_eq!(keyed("\n").unwrap().key, "");
    let text = keyed("our\njob").unwrap_err().to_string();
    assert!(text.contains("control character '\\n'") && text.contains("NCCL_BENCH_KEY"), "{text}");
    // Keys derived from launchers' identifiers.
    let torchrun =
        [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("TORCHELASTIC_RUN_ID", "a\x1bb")];
    assert!(message(&torchrun).contains("control character '\\u{1b}'"));
    let overridden = [&torchrun[..], &[("NCCL_BENCH_KEY", "k")]].concat();
    assert_eq!(config(&overridden).unwrap().key, "k");
}

#[test]
fn wrong_variables_are_named() {
    assert!(message(&[]).contains("NCCL_BENCH_RANK"));
    assert!(message(&[("RANK", "x"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]).contains("RANK is `x`"));
    assert!(message(&[("RANK", "0"), ("WORLD_SIZE", "2")]).contains("MASTER_ADDR"));
    assert!(message(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")]).contains("rank 2 of 2"));
    let port = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")];
    assert!(message(&port).contains("MASTER_PORT is `70000`"));
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_JOB_NODELIST", "a[")];
    assert!(message(&slurm).contains("SLURM_JOB_NODELIST is `a[`"));
    assert!(message(&slurm).contains("set MASTER_ADDR"));
    assert!(message(&[("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "2")]).contains("NCCL_BENCH_ADDR"));
}
