//! Forms of assignments in texts.

use crate::environment::parse::parse_submission;

fn pairs(text: &str) -> Vec<String> {
    let all = parse_submission(text, "f");
    all.settings.iter().map(|it| format!("{}={}", it.name, it.value)).collect()
}

#[test]
fn json_and_entries_in_any_order_are_read() {
    let compact = r#"{"env":[{"name":"NCCL_P2P_DISABLE","value":"1"},{"value":"WARN","name":"NCCL_DEBUG"}]}"#;
    let expected = ["NCCL_DEBUG=WARN", "NCCL_P2P_DISABLE=1"];
    assert_eq!(pairs(compact), expected);
    let value: serde_json::Value = serde_json::from_str(compact).unwrap();
    let indented = serde_json::to_string_pretty(&value).unwrap();
    assert_eq!(pairs(&indented), expected);
    assert_eq!(parse_submission(&indented, "f").settings[1].place.to_string(), "f:4");
    // JSON with a comment is read by lines.
    assert_eq!(pairs(&format!("// a comment\n{indented}")), expected);
    assert_eq!(pairs(&format!("# YAML\nitem: {compact}")), expected);
    let yaml = "env:\n- value: '1'\n  name: NCCL_P2P_DISABLE\n- value: WARN\n  # why\n\
                \x20 name: \"NCCL_DEBUG\"\n- {value: \"a,b\", name: NCCL_IB_HCA}\n";
    assert_eq!(pairs(yaml), ["NCCL_DEBUG=WARN", "NCCL_IB_HCA=a,b", "NCCL_P2P_DISABLE=1"]);
    let docker =
        r#"[{"Env": ["NCCL_NET=AWS Libfabric", "API_KEY=x"], "Cmd": ["mpirun", "-x", "NCCL_ALGO"]}]"#;
    assert_eq!(pairs(docker), ["NCCL_NET=AWS Libfabric"]);
    assert!(parse_submission(docker, "f").is_partial);
}

#[test]
fn what_is_not_known_is_partial() {
    for text in [
        "export NCCL_HOSTID=$(hostname)",
        "- name: NCCL_DEBUG\n  value: {{ .Values.debug | quote }}\n",
        "- name: NCCL_DEBUG\n  valueFrom:\n    configMapKeyRef: {name: a, key: b}\n",
        "envFrom:\n- configMapRef: {name: nccl}\nenv:\n- {name: NCCL_DEBUG, value: WARN}\n",
        r#"{"envFrom": [{"configMapRef": {"name": "nccl"}}], "NCCL_DEBUG": "WARN"}"#,
        r#"[{"name": "NCCL_DEBUG", "valueFrom": {}}]"#,
        "echo NCCL_ALGO=Rng >> /etc/nccl.conf",
        "export NCCL_IB_HCA=mlx5_0, mlx5_1",
        "export NCCL_SOCKET_IFNAME=eth0 ib0",
        "export CUDA_VISIBLE_DEVICES=0 1",
        "NCCL_IB_HCA=mlx5_0\nsrun ./train",
        "#!/bin/bash\nNCCL_IB_HCA=\"mlx5_0\" # why\nmpirun -x NCCL_IB_HCA ./train",
        "mpirun -x NCCL_IB_HCA=mlx5_0,NCCL_DEBUG=WARN ./a",
        "RUN echo NCCL_ALGO=Rng > /etc/nccl.conf",
        "export NCCL_SOCKET_IFNAME= eth0",
        "CUDA_VISIBLE_DEVICES=0, 1, 2, 3 ./train",
        "srun --export=ALL,NCCL_IB_HCA=mlx5_0,mlx5_1 ./train",
    ] {
        let all = parse_submission(text, "f");
        assert!(all.is_partial && !all.unseen.is_empty(), "{text}: {all:?}");
    }
    let known = parse_submission("export NCCL_DEBUG=WARN\nmpirun -x NCCL_DEBUG ./a\n", "f");
    for whole in [
        "export NCCL_DEBUG=WARN PATH",
        "NCCL_DEBUG=WARN\nexport NCCL_DEBUG\nsrun ./train",
        "set -a\nNCCL_DEBUG=WARN\nsrun ./train",
        "NCCL_DEBUG=WARN \\\nsrun ./train",
        "NCCL_DEBUG=WARN\nNCCL_ALGO=Ring\n",
        "cat > nccl.conf <<EOF\nNCCL_DEBUG=WARN\nEOF\nsrun ./train",
        "export NCCL_DEBUG=WARN # why",
        "export NCCL_DEBUG=WARN; ./train",
        "export NCCL_DEBUG=WARN && ./train",
        "NCCL_DEBUG=WARN ./train a",
        "mpirun -x NCCL_DEBUG=WARN train a",
        "srun --export=ALL,NCCL_DEBUG=WARN,PATH train a",
    ] {
        assert!(
            !parse_submission(whole, "f").is_partial,
            "{whole}: {:?}",
            parse_submission(whole, "f").unseen
        );
    }
    assert!(!known.is_partial && known.unseen.is_empty(), "{known:?}");
}

#[test]
fn the_output_of_env_is_read() {
    let text = "PATH=/bin\nNCCL_ALGO=ring;allreduce:tree\nNCCL_SOCKET_IFNAME==eth0,eth1\n\
                AWS_SECRET_ACCESS_KEY=x\nNCCL_IB_HCA=^mlx5_1:1\n";
    assert_eq!(
        pairs(text),
        ["NCCL_ALGO=ring;allreduce:tree", "NCCL_IB_HCA=^mlx5_1:1", "NCCL_SOCKET_IFNAME==eth0,eth1"]
    );
}

#[test]
fn shell_scripts_and_launchers_are_read() {
    for (line, expected) in [
        ("export NCCL_DEBUG=INFO # for now", vec!["NCCL_DEBUG=INFO"]),
        ("  export NCCL_ALGO=\"ring;allreduce:tree\"; train", vec!["NCCL_ALGO=ring;allreduce:tree"]),
        (
            "NCCL_DEBUG=INFO NCCL_NET='AWS Libfabric' ./train",
            vec!["NCCL_DEBUG=INFO", "NCCL_NET=AWS Libfabric"],
        ),
        (
            "mpirun -np 16 -x NCCL_DEBUG=INFO -x FI_PROVIDER=efa \\",
            vec!["FI_PROVIDER=efa", "NCCL_DEBUG=INFO"],
        ),
        ("  -x NCCL_BUFFSIZE=8388608 \\", vec!["NCCL_BUFFSIZE=8388608"]),
        ("mpiexec -genv NCCL_DEBUG WARN ./a", vec!["NCCL_DEBUG=WARN"]),
        ("#SBATCH --export=ALL,NCCL_DEBUG=INFO,FI_PROVIDER=efa", vec!["FI_PROVIDER=efa", "NCCL_DEBUG=INFO"]),
        (
            "docker run -e NCCL_DEBUG=INFO -e \"NCCL_NET=AWS Libfabric\" image",
            vec!["NCCL_DEBUG=INFO", "NCCL_NET=AWS Libfabric"],
        ),
        (
            "command: [mpirun, -x, FI_EFA_FORK_SAFE=1, -x, FI_PROVIDER=efa]",
            vec!["FI_EFA_FORK_SAFE=1", "FI_PROVIDER=efa"],
        ),
        ("args: [a,\n  -x, NCCL_ALGO=Ring,\n  b]", vec!["NCCL_ALGO=Ring"]),
        ("HOME=/root\nNCCL_NET=AWS Libfabric\n", vec!["NCCL_NET=AWS Libfabric"]),
        ("NCCL_NET=AWS Libfabric", vec!["NCCL_NET=AWS Libfabric"]),
        ("#PBS -v NCCL_DEBUG=WARN,NCCL_IB_DISABLE=1", vec!["NCCL_DEBUG=WARN", "NCCL_IB_DISABLE=1"]),
        ("qsub -v NCCL_DEBUG=WARN,NCCL_IB_DISABLE=1 a.sh", vec!["NCCL_DEBUG=WARN", "NCCL_IB_DISABLE=1"]),
        ("#BSUB -env \"all,NCCL_DEBUG=WARN\"", vec!["NCCL_DEBUG=WARN"]),
        (
            "apptainer exec --nv --env NCCL_DEBUG=WARN,NCCL_IB_DISABLE=1 a.sif ./a",
            vec!["NCCL_DEBUG=WARN", "NCCL_IB_DISABLE=1"],
        ),
        ("NCCL_DEBUG=INFO ./train", vec!["NCCL_DEBUG=INFO"]),
        ("ENV NCCL_DEBUG INFO", vec!["NCCL_DEBUG=INFO"]),
        ("# export NCCL_DEBUG=INFO", vec![]),
        ("echo $NCCL_DEBUG ${NCCL_NET:-x}", vec![]),
        ("echo \"NCCL_ALGO=Rng\"", vec![]),
        ("test -n x && echo NCCL_ALGO=Rng; NCCL_DEBUG=INFO ./a", vec!["NCCL_DEBUG=INFO"]),
        ("grep NCCL_ALGO=Rng log", vec![]),
        ("if x; then echo NCCL_ALGO=Rng; fi", vec![]),
        ("apptainer exec --env A=1 a.sif mpirun -x NCCL_ALGO=Ring,Tree ./a", vec!["NCCL_ALGO=Ring,Tree"]),
        ("srun --export=ALL env NCCL_ALGO=Ring,Tree ./a", vec!["NCCL_ALGO=Ring,Tree"]),
        ("os.environ[\"NCCL_DEBUG\"] = \"INFO\"", vec!["NCCL_DEBUG=INFO"]),
        (
            "{\"NCCL_DEBUG\": \"INFO\", \"NCCL_NVLS_ENABLE\": 0}",
            vec!["NCCL_DEBUG=INFO", "NCCL_NVLS_ENABLE=0"],
        ),
        ("  NCCL_DEBUG: INFO  # YAML", vec!["NCCL_DEBUG=INFO"]),
        ("see NCCL_DEBUG: it is a variable", vec![]),
    ] {
        assert_eq!(pairs(line), expected, "{line}");
    }
}

#[test]
fn manifests_of_kubernetes_are_read() {
    let text = r#"
          env:
          - name: NCCL_SOCKET_IFNAME
            value: "eth0,en"
          - name: NCCL_BUFFSIZE
            value: '2097152'
          - name: API_TOKEN
            value: hush
          - name: NCCL_HOSTID
            valueFrom:
              fieldRef: {fieldPath: spec.nodeName}
          - {name: FI_PROVIDER, value: efa}
          - name: NCCL_DEBUG
            value: INFO
        "#;
    let all = parse_submission(text, "job.yaml");
    let shown: Vec<_> =
        all.settings.iter().map(|it| format!("{}={} {}", it.name, it.value, it.place)).collect();
    assert_eq!(
        shown,
        [
            "FI_PROVIDER=efa job.yaml:12",
            "NCCL_BUFFSIZE=2097152 job.yaml:5",
            "NCCL_DEBUG=INFO job.yaml:13",
            "NCCL_SOCKET_IFNAME=eth0,en job.yaml:3"
        ]
    );
    assert_eq!(all.unseen, ["NCCL_HOSTID (job.yaml:9) takes its value from another object"]);
    assert!(!format!("{all:?}").contains("hush"));
}

#[test]
fn the_last_value_counts_and_computed_ones_are_told() {
    let all = parse_submission(
        "export NCCL_DEBUG=INFO\nexport NCCL_DEBUG=WARN\nexport NCCL_NET=$NET\nunset NCCL_ALGO\nmpirun -x \
         NCCL_PROTO\n",
        "f",
    );
    assert_eq!(all.settings.len(), 1);
    assert_eq!((all.settings[0].value.as_str(), all.overridden[0].value.as_str()), ("WARN", "INFO"));
    assert_eq!(all.unseen.len(), 2, "{:?}", all.unseen);
    assert!(all.unseen[0].contains("NCCL_NET (f:3) is computed"), "{:?}", all.unseen);
    assert!(all.unseen[1].contains("NCCL_PROTO (f:5) takes its value"), "{:?}", all.unseen);
    assert!(pairs("export NCCL_ALGO=Ring\nunset NCCL_ALGO").is_empty());
}

#[test]
fn hostile_text_does_not_panic() {
    for text in [
        "NCCL_=",
        "NCCL_A=\"",
        "- name: NCCL_X",
        "ü NCCL_ü=ü",
        "\"NCCL_A\": ",
        "NCCL_A]=",
        "name: NCCL_A value:",
        "-x NCCL_A",
    ] {
        parse_submission(text, "f");
    }
}
