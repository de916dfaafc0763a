use super::*;

fn started(variables: &[(&str, &str)]) -> Started {
    Started::from_variables(&|name| {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    })
}

#[test]
fn each_launcher_is_detected_by_its_variables() {
    let known = |variables: &[(&str, &str)]| {
        let Started { launcher, rank, size, mpi } = started(variables);
        (launcher, rank.zip(size), mpi)
    };
    assert_eq!(known(&[]), (Launcher::None, None, false));
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "2")];
    assert_eq!(known(&open_mpi), (Launcher::OpenMpi, Some((2, 4)), true));
    let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "3"), ("PMI_FD", "7")];
    assert_eq!(known(&mpich), (Launcher::Mpich, Some((1, 3)), true));
    assert_eq!(known(&[("RANK", "1"), ("WORLD_SIZE", "2")]), (Launcher::Torchrun, Some((1, 2)), false));
    let explicit = [("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "2")];
    assert_eq!(known(&explicit), (Launcher::Explicit, Some((0, 2)), false));
    let slurm = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0")];
    assert_eq!(known(&slurm), (Launcher::Slurm, Some((5, 8)), false));
    let with_pmix = [&slurm[..], &[("PMIX_RANK", "5")]].concat();
    assert_eq!(known(&with_pmix), (Launcher::Slurm, Some((5, 8)), true));
    // Slurm's PMI-2 sets the same two variables as MPICH's launcher.
    let with_pmi = [&slurm[..], &[("PMI_RANK", "5"), ("PMI_SIZE", "8")]].concat();
    assert_eq!(known(&with_pmi), (Launcher::Slurm, Some((5, 8)), true));
}

#[test]
fn a_batch_script_is_not_a_step() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77")];
    assert_eq!(started(&batch).launcher, Launcher::None);
}

#[test]
fn the_innermost_launcher_counts() {
    let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")];
    let torchrun = [("RANK", "9"), ("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "none")];
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    assert_eq!(started(&[&slurm[..], &torchrun[..]].concat()).rank, Some(9));
    assert_eq!(started(&[&mpirun[..], &torchrun[..]].concat()).launcher, Launcher::Torchrun);
    assert_eq!(started(&[&slurm[..], &mpirun[..]].concat()).launcher, Launcher::OpenMpi);
    let exported = [("RANK", "1"), ("WORLD_SIZE", "2")];
    assert_eq!(started(&[&mpirun[..], &exported[..]].concat()).launcher, Launcher::OpenMpi);
}

#[test]
fn a_pod_of_an_indexed_job_has_an_index_and_variables_of_its_template() {
    let pod = [("JOB_COMPLETION_INDEX", "3")];
    let detected = |more: &[(&str, &str)]| started(&[&pod[..], more].concat());
    let Started { launcher, rank, size, mpi } = detected(&[("NCCL_BENCH_SIZE", "8"), ("WORLD_SIZE", "16")]);
    assert_eq!((launcher, rank, size, mpi), (Launcher::Kubernetes, Some(3), Some(8), false));
    assert_eq!(detected(&[("WORLD_SIZE", "16")]).size, Some(16));
    assert_eq!(
        (detected(&[]).launcher, detected(&[]).rank, detected(&[]).size),
        (Launcher::Kubernetes, Some(3), None)
    );
    // A launcher inside the pod takes precedence.
    for inner in [
        &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")][..],
        &[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PMI_FD", "7")],
        &[("RANK", "1"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")],
        &[("RANK", "1"), ("WORLD_SIZE", "2")],
        &[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2"), ("SLURM_STEP_ID", "0")],
        &[("NCCL_BENCH_RANK", "1"), ("NCCL_BENCH_SIZE", "2")],
    ] {
        assert_eq!((detected(inner).rank, detected(inner).size), (Some(1), Some(2)), "{inner:?}");
    }
}

#[test]
fn a_pod_is_alone_only_if_its_template_says_so() {
    let alone = |variables: &[(&str, &str)]| started(variables).is_single_process();
    let pod = |index| ("JOB_COMPLETION_INDEX", index);
    assert!(alone(&[]) && alone(&[pod("0"), ("NCCL_BENCH_SIZE", "1")]));
    assert!(!alone(&[pod("0")]));
    assert!(alone(&[("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("PMI_FD", "7")]));
    assert!(!alone(&[pod("1")]) && !alone(&[pod("none")]) && !alone(&[pod("0"), ("WORLD_SIZE", "2")]));
    // A malformed size.
    assert!(!alone(&[("RANK", "0"), ("WORLD_SIZE", "two")]));
}

#[test]
fn an_mpi_that_does_not_support_the_launcher_is_an_error_with_advice() {
    let mpich = started(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_FD", "7")]);
    let text = mpich.agrees_with_mpi("Open MPI 4.1.4", 0, 1).unwrap_err().to_string();
    assert_eq!(
        text,
        "MPICH's mpiexec started 4 processes, but this program was built with Open MPI 4.1.4, so every \
         process believes that it is rank 0 of 1; if no mpiexec started this process, unset PMI_RANK and \
         PMI_SIZE; otherwise start it with the mpirun of that MPI (Open MPI), build it with the MPI of this \
         launcher, or let the ranks meet over TCP (`Options::kind = Kind::Tcp`)"
    );
    mpich.agrees_with_mpi("MPICH 4.0.2", 1, 4).unwrap();
    // Processes of another launcher, unknown to MPI.
    let torchrun = started(&[("RANK", "0"), ("WORLD_SIZE", "2")]);
    let text = torchrun.agrees_with_mpi("Open MPI 4.1.4", 0, 1).unwrap_err().to_string();
    assert!(text.contains("started 2 processes") && text.contains("rank 0 of 1"), "{text}");
    torchrun.agrees_with_mpi("Open MPI 4.1.4", 1, 4).unwrap();
    started(&[("RANK", "0"), ("WORLD_SIZE", "1")]).agrees_with_mpi("Open MPI 4.1.4", 0, 1).unwrap();
    started(&[]).agrees_with_mpi("Open MPI 4.1.4", 0, 1).unwrap();
}

fn values<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

fn find_refusal(variables: &[(&str, &str)], ancestor: Option<&str>) -> Option<Refusal> {
    find_refusal_of(Kind::Auto, variables, ancestor)
}

fn find_refusal_of(kind: Kind, variables: &[(&str, &str)], ancestor: Option<&str>) -> Option<Refusal> {
    let find_ancestor = || ancestor.map(str::to_owned);
    LauncherVariables {
        started: &started(variables),
        variable: &values(variables),
        find_ancestor: &find_ancestor,
    }
    .find_refusal(kind)
}

/// Returns the variable of another launcher that makes a process refuse to be alone, and the variable with
/// its size of 1.
fn find_other(variables: &[(&str, &str)]) -> Option<(&'static str, Option<&'static str>)> {
    match find_refusal(variables, None) {
        Some(Refusal::OtherLauncher { found: (name, _), alone }) => Some((name, alone)),
        Some(other) => panic!("{variables:?}: {other}"),
        None => None,
    }
}

const LEFT_OVER: [(&str, &str); 3] = [("RANK", "0"), ("WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", "x")];
const STEP: [(&str, &str); 3] =
    [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("SLURM_STEP_ID", "0")];
const ONE_TASK: [(&str, &str); 3] =
    [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_STEP_ID", "0")];
const ONE_OF_MPIRUN: [(&str, &str); 2] = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];

#[test]
fn a_size_of_one_that_a_launcher_of_several_contradicts_is_found() {
    let mpirun = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let of_mpirun = Some(("OMPI_COMM_WORLD_SIZE", Some("WORLD_SIZE")));
    assert_eq!(find_other(&[&mpirun[..], &LEFT_OVER].concat()), of_mpirun);
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMI_FD", "7")];
    let explicit = [("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "1")];
    let of_hydra = Some(("PMI_SIZE", Some("NCCL_BENCH_SIZE")));
    assert_eq!(find_other(&[&hydra[..], &explicit].concat()), of_hydra);
    let of_srun = Some(("SLURM_STEP_NUM_TASKS", Some("WORLD_SIZE")));
    assert_eq!(find_other(&[&STEP[..], &LEFT_OVER].concat()), of_srun);
    let old_step = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_STEPID", "0")];
    let of_old_srun = Some(("SLURM_NTASKS", Some("WORLD_SIZE")));
    assert_eq!(find_other(&[&old_step[..], &LEFT_OVER].concat()), of_old_srun);
    // Two right sizes: torchrun on each node of a step; a shell in an allocation.
    let of_nodes = [("RANK", "9"), ("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "x")];
    let allocation = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77")];
    for right in [
        [&STEP[..], &of_nodes].concat(),
        [&ONE_OF_MPIRUN[..], &LEFT_OVER].concat(),
        [&allocation[..], &LEFT_OVER].concat(),
        [&allocation[..], &ONE_OF_MPIRUN].concat(),
        mpirun.to_vec(),
        ONE_OF_MPIRUN.to_vec(),
        ONE_TASK.to_vec(),
    ] {
        assert_eq!(find_other(&right), None, "{right:?}");
    }
}

#[test]
fn one_rank_of_mpirun_inside_a_step_is_told_from_a_left_over_one() {
    let both = [&STEP[..], &ONE_OF_MPIRUN].concat();
    assert_eq!(find_other(&both), Some(("SLURM_STEP_NUM_TASKS", Some("OMPI_COMM_WORLD_SIZE"))));
    // mpirun is an ancestor of the process, so the step is around it.
    assert_eq!(find_refusal(&both, Some("mpirun")), None);
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "1"), ("PMI_FD", "7")];
    assert!(find_refusal(&[&STEP[..], &hydra].concat(), None).is_some());
    assert_eq!(find_refusal(&[&STEP[..], &hydra].concat(), Some("hydra_pmi_proxy")), None);
    let launched_inside = [&ONE_OF_MPIRUN[..], &[("FLUX_JOB_SIZE", "2")]].concat();
    assert!(find_refusal(&launched_inside, Some("mpirun")).is_some());
}

#[test]
fn a_process_that_is_said_to_be_alone_is_never_refused() {
    for variables in [&[("PMI_SIZE", "2")][..], &[("RANK", "1")], &[("OMPI_COMM_WORLD_RANK", "x")]] {
        for kind in [Kind::Single, Kind::Mpi] {
            assert_eq!(find_refusal_of(kind, variables, Some("mpirun")), None, "{variables:?}");
        }
    }
    // The rendezvous over TCP reports a missing rank itself.
    assert_eq!(find_refusal_of(Kind::Tcp, &[("PMI_SIZE", "2")], Some("mpirun")), None);
    let step = [&STEP[..], &LEFT_OVER].concat();
    assert!(matches!(find_refusal_of(Kind::Tcp, &step, None), Some(Refusal::OtherLauncher { .. })));
}

#[test]
fn a_pod_needs_a_number_of_pods_and_an_address() {
    let pod = |more: &[(&str, &str)]| {
        find_refusal(&[&[("JOB_COMPLETION_INDEX", "0"), ("NCCL_BENCH_ADDR", "h:1")][..], more].concat(), None)
    };
    assert!(matches!(pod(&[]), Some(Refusal::IncompletePair { missing: "NCCL_BENCH_SIZE", .. })));
    for size in ["NCCL_BENCH_SIZE", "WORLD_SIZE", "PET_NNODES"] {
        assert_eq!(pod(&[(size, "2")]), None, "{size}");
    }
}

#[test]
fn one_task_of_a_launcher_hides_no_launcher_inside_it() {
    for around in [&ONE_TASK[..], &ONE_OF_MPIRUN] {
        for (name, value) in [
            ("FLUX_JOB_SIZE", "2"),
            ("MV2_COMM_WORLD_SIZE", "2"),
            ("PALS_RANKID", "1"),
            ("PMI_SIZE", "2"),
            ("HOROVOD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("LOCAL_RANK", "1"),
        ] {
            let variables = [around, &[(name, value)]].concat();
            assert_eq!(find_other(&variables).map(|(found, _)| found), Some(name), "{variables:?}");
        }
        let half = find_refusal(&[around, &[("NCCL_BENCH_SIZE", "2")]].concat(), None);
        assert_eq!(
            half,
            Some(Refusal::IncompletePair { set: "NCCL_BENCH_SIZE", missing: "NCCL_BENCH_RANK" })
        );
        // Variables of a script or of a pod around the launcher.
        for outer in [("WORLD_SIZE", "16"), ("NNODES", "2"), ("JOB_COMPLETION_INDEX", "1")] {
            assert_eq!(find_refusal(&[around, &[outer]].concat(), None), None, "{outer:?}");
        }
    }
    // A launcher with torchrun's variables, inside mpirun.
    let inside = [&ONE_OF_MPIRUN[..], &[("RANK", "0"), ("WORLD_SIZE", "2")]].concat();
    assert_eq!(find_other(&inside), Some(("WORLD_SIZE", Some("OMPI_COMM_WORLD_SIZE"))));
}

#[test]
fn a_process_of_a_launcher_that_gives_no_size_is_not_taken_for_a_single_one() {
    let found = |variables: &[(&str, &str)]| find_other(variables).map(|(name, _)| name);
    for (rank, size) in [
        ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
        ("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("PMI_ID", "PMI_SIZE"),
        ("MPIRUN_RANK", "MPIRUN_NPROCS"),
    ] {
        assert_eq!(found(&[(rank, "0"), (size, "2")]), Some(size));
        assert_eq!(found(&[(rank, "0"), (size, "1")]), None);
        assert_eq!(found(&[(rank, "1")]), Some(rank));
        // A rank alone is of unknown size.
        assert_eq!(found(&[(rank, "0")]), Some(rank));
    }
    for rank in ["PMIX_RANK", "PALS_RANKID", "ALPS_APP_PE"] {
        assert_eq!(found(&[(rank, "0")]), Some(rank));
    }
    assert_eq!(found(&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "job")]), Some("PMIX_NAMESPACE"));
    for (rank, size) in [
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
        ("NODE_RANK", "NNODES"),
        ("PET_NODE_RANK", "PET_NNODES"),
        ("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_NODES"),
        ("LWS_WORKER_INDEX", "LWS_GROUP_SIZE"),
        ("_CONDOR_PROCNO", "_CONDOR_NPROCS"),
    ] {
        assert_eq!(find_other(&[(rank, "0"), (size, "2")]).map(|(name, _)| name), Some(size));
        assert_eq!(find_other(&[(rank, "0"), (size, "1")]), None);
        assert_eq!(find_other(&[(rank, "1")]).map(|(name, _)| name), Some(rank));
    }
    assert_eq!(found(&[("SLURM_NODEID", "1")]), Some("SLURM_NODEID"));
    assert_eq!(found(&[("SM_HOSTS", r#"["algo-1","algo-2"]"#)]), Some("SM_HOSTS"));
    assert_eq!(found(&[("SM_HOSTS", r#"["algo-1"]"#)]), None);
    // A pod of Kubeflow's Trainer.
    assert_eq!(found(&[("JOB_COMPLETION_INDEX", "0"), ("PET_NNODES", "1"), ("PET_NODE_RANK", "0")]), None);
    // A batch script of Slurm.
    assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77")]), None);
    // torchrun's variables without its rank.
    assert_eq!(found(&[("LOCAL_RANK", "0"), ("GROUP_RANK", "1")]), Some("GROUP_RANK"));
    // A container with two variables of a step.
    assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Some("SLURM_NTASKS"));
    assert_eq!(found(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), None);
    for (set, missing) in
        [("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")]
    {
        assert_eq!(find_refusal(&[(set, "1")], None), Some(Refusal::IncompletePair { set, missing }));
    }
    // An ancestor without variables.
    assert_eq!(find_refusal(&[], Some("orted")), Some(Refusal::VariablesRemoved("orted".to_owned())));
}

#[test]
fn a_left_over_size_of_one_hides_no_other_launcher() {
    for (name, value) in [
        ("JOB_COMPLETION_INDEX", "1"),
        ("PMI_SIZE", "2"),
        ("PMIX_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "2"),
        ("FLUX_JOB_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("SLURM_PROCID", "2"),
    ] {
        let variables = [("RANK", "0"), ("WORLD_SIZE", "1"), (name, value)];
        assert_eq!(find_other(&variables), Some((name, Some("WORLD_SIZE"))));
    }
    let of_mpirun = [("PMIX_NAMESPACE", "of mpirun -np 1"), ("PMIX_RANK", "0")];
    assert_eq!(find_other(&[&LEFT_OVER[..], &of_mpirun].concat()), None);
    // A left-over size of Open MPI alone is not a launcher.
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(started(&torchrun).size, Some(2));
    assert_eq!(started(&[("JOB_COMPLETION_INDEX", "1"), ("OMPI_COMM_WORLD_SIZE", "1")]).size, None);
}

#[test]
fn ranks_that_do_not_fit_the_size_are_found() {
    let found = |variables: &[(&str, &str)]| find_refusal(variables, None).map(|found| found.to_string());
    let open_mpi = |rank, size| [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)];
    assert_eq!(
        found(&open_mpi("1", "1")).unwrap(),
        "OMPI_COMM_WORLD_RANK is 1, but OMPI_COMM_WORLD_SIZE is 1: one of them belongs to another job; \
         unset the variables of the other job"
    );
    let local = [&open_mpi("0", "1")[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
    assert!(found(&local).unwrap().starts_with("OMPI_COMM_WORLD_LOCAL_SIZE is 2"));
    assert!(found(&[("RANK", "1"), ("WORLD_SIZE", "1")]).is_some());
    assert!(found(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "2")]).is_some());
    assert!(found(&[("JOB_COMPLETION_INDEX", "1"), ("NCCL_BENCH_SIZE", "1")]).is_some());
    for variables in [&open_mpi("x", "y"), &open_mpi("x", "1"), &[("RANK", "x"), ("WORLD_SIZE", "1")]] {
        assert!(found(variables).unwrap().contains("RANK is `x`, not a valid rank or size"));
    }
    for right in [&open_mpi("0", "1"), &open_mpi("1", "2"), &[("RANK", "3"), ("WORLD_SIZE", "4")]] {
        assert_eq!(found(right), None, "{right:?}");
    }
}
