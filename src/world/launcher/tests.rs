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
    // A launcher that runs inside the pod takes precedence.
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
        "MPICH's mpiexec started 4 processes, but this program was built with Open MPI 4.1.4, so every process \
         believes that it is rank 0 of 1; start it with the mpirun of that MPI (Open MPI), build it with the MPI \
         of this launcher, or let the ranks meet over TCP (`Options::kind = Kind::Tcp`); if no mpiexec started \
         this process, unset PMI_RANK and PMI_SIZE"
    );
    mpich.agrees_with_mpi("MPICH 4.0.2", 1, 4).unwrap();
    started(&[]).agrees_with_mpi("Open MPI 4.1.4", 0, 1).unwrap();
}

fn values<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
}

#[test]
fn a_size_of_one_that_a_launcher_of_several_contradicts_is_found() {
    let contradicted = |variables: &[(&str, &str)]| started(variables).contradicted_size(&values(variables));
    let left_over = [("RANK", "0"), ("WORLD_SIZE", "1"), ("TORCHELASTIC_RUN_ID", "x")];
    let mpirun = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let of_mpirun = Some(("WORLD_SIZE", Launcher::OpenMpi, "OMPI_COMM_WORLD_SIZE"));
    assert_eq!(contradicted(&[&mpirun[..], &left_over].concat()), of_mpirun);
    let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "4"), ("PMI_FD", "7")];
    let explicit = [("NCCL_BENCH_RANK", "0"), ("NCCL_BENCH_SIZE", "1")];
    let of_hydra = Some(("NCCL_BENCH_SIZE", Launcher::Mpich, "PMI_SIZE"));
    assert_eq!(contradicted(&[&hydra[..], &explicit].concat()), of_hydra);
    let step = [("SLURM_PROCID", "5"), ("SLURM_NTASKS", "8"), ("SLURM_STEP_ID", "0")];
    let of_srun = Some(("WORLD_SIZE", Launcher::Slurm, "SLURM_NTASKS"));
    assert_eq!(contradicted(&[&step[..], &left_over].concat()), of_srun);
    // Two right sizes: torchrun on each node of a step; one process of mpirun; a shell in an allocation.
    let of_nodes = [("RANK", "9"), ("WORLD_SIZE", "16"), ("TORCHELASTIC_RUN_ID", "x")];
    let one = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    for right in [
        [&step[..], &of_nodes].concat(),
        [&one[..], &left_over].concat(),
        [&step[..2], &left_over].concat(),
        [&step[..], &one].concat(),
        mpirun.to_vec(),
        one.to_vec(),
    ] {
        assert_eq!(contradicted(&right), None, "{right:?}");
    }
}

#[test]
fn a_process_of_a_launcher_that_gives_no_size_is_not_taken_for_a_single_one() {
    let shown = |variables: &[(&str, &str)]| {
        let found = started(variables);
        let half = found.incomplete_variables(&values(variables)).map(|(set, _)| set);
        half.or(found.find_other_launcher(&values(variables)).map(|(name, _)| name))
    };
    assert_eq!(shown(&[("MV2_COMM_WORLD_RANK", "0")]), Some("MV2_COMM_WORLD_RANK"));
    let mvapich = [("MV2_COMM_WORLD_RANK", "0"), ("MV2_COMM_WORLD_SIZE", "2")];
    assert_eq!(shown(&mvapich), Some("MV2_COMM_WORLD_SIZE"));
    assert_eq!(shown(&[("MV2_COMM_WORLD_RANK", "0"), ("MV2_COMM_WORLD_SIZE", "1")]), None);
    assert_eq!(shown(&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "job")]), Some("PMIX_NAMESPACE"));
    for (rank, size) in [
        ("MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE"),
        ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        ("HOROVOD_RANK", "HOROVOD_SIZE"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
        ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
        ("AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES"),
    ] {
        assert_eq!(shown(&[(rank, "0"), (size, "2")]), Some(size));
        assert_eq!(shown(&[(rank, "0"), (size, "1")]), None);
        assert_eq!(shown(&[(rank, "1")]), Some(rank));
    }
    // A batch script of Slurm.
    assert_eq!(shown(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8"), ("SLURM_JOB_ID", "77")]), None);
    // torchrun's variables without its rank.
    assert_eq!(shown(&[("LOCAL_RANK", "0"), ("GROUP_RANK", "1")]), Some("GROUP_RANK"));
    assert_eq!(shown(&[("OMPI_COMM_WORLD_SIZE", "1")]), Some("OMPI_COMM_WORLD_SIZE"));
    // A container that got two variables of a step.
    assert_eq!(shown(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]), Some("SLURM_NTASKS"));
    assert_eq!(shown(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]), None);
}

#[test]
fn a_left_over_size_of_one_hides_no_other_launcher() {
    let shown = |more: &[(&str, &str)]| {
        let variables = [&[("RANK", "0"), ("WORLD_SIZE", "1")], more].concat();
        let found = started(&variables).find_other_launcher(&values(&variables));
        found.map(|(name, _)| name.to_owned())
    };
    for (name, value) in [
        ("JOB_COMPLETION_INDEX", "1"),
        ("PMI_SIZE", "2"),
        ("PMIX_RANK", "1"),
        ("MV2_COMM_WORLD_SIZE", "2"),
        ("FLUX_JOB_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("SLURM_PROCID", "2"),
    ] {
        assert_eq!(shown(&[(name, value)]).as_deref(), Some(name));
    }
    assert_eq!(shown(&[("PMIX_NAMESPACE", "of mpirun -np 1"), ("PMIX_RANK", "0")]), None);
    // A left-over size of Open MPI alone is no launcher.
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_SIZE", "1")];
    assert_eq!(started(&torchrun).size, Some(2));
    assert_eq!(started(&[("JOB_COMPLETION_INDEX", "1"), ("OMPI_COMM_WORLD_SIZE", "1")]).size, None);
}

#[test]
fn ranks_that_do_not_fit_the_size_are_found() {
    let found = |variables: &[(&str, &str)]| {
        started(variables).find_contradiction(&values(variables)).map(|found| found.to_string())
    };
    let open_mpi = |rank, size| [("OMPI_COMM_WORLD_RANK", rank), ("OMPI_COMM_WORLD_SIZE", size)];
    assert_eq!(
        found(&open_mpi("1", "1")).unwrap(),
        "OMPI_COMM_WORLD_RANK is 1, and OMPI_COMM_WORLD_SIZE is 1: they cannot both be of this job; unset those that are left \
         from another one"
    );
    let local = [&open_mpi("0", "1")[..], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]].concat();
    assert!(found(&local).unwrap().starts_with("OMPI_COMM_WORLD_LOCAL_SIZE is 2"));
    assert!(found(&[("RANK", "1"), ("WORLD_SIZE", "1")]).is_some());
    assert!(found(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "2")]).is_some());
    assert!(found(&[("JOB_COMPLETION_INDEX", "1"), ("NCCL_BENCH_SIZE", "1")]).is_some());
    assert!(
        found(&open_mpi("x", "y"))
            .unwrap()
            .contains("OMPI_COMM_WORLD_RANK is `x`, which is not a valid rank or size")
    );
    for right in [&open_mpi("0", "1"), &open_mpi("1", "2"), &[("RANK", "3"), ("WORLD_SIZE", "4")]] {
        assert_eq!(found(right), None, "{right:?}");
    }
}
