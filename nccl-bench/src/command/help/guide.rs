//! Help on topics rather than flags: `nccl-bench help busbw`.

struct HelpTopic {
    name: &'static str,
    summary: &'static str,
    text: &'static str,
    /// Other names for the topic, with blanks between.
    others: &'static str,
}

impl HelpTopic {
    fn all_names(&self) -> impl Iterator<Item = &'static str> {
        self.others.split(' ').chain([self.name])
    }
}

/// The topics, in reading order.
const TOPICS: &[HelpTopic] = &[
    HelpTopic {
        name: "launchers",
        summary: "mpirun, srun, torchrun, Kubernetes, by hand",
        text: include_str!("guide/launchers.txt"),
        others: "launcher launch mpi mpirun slurm srun torchrun kubernetes k8s tcp world",
    },
    HelpTopic {
        name: "backends",
        summary: "NCCL, libfabric, MPI: what carries the data",
        text: include_str!("guide/backends.txt"),
        others: "backend libfabric openmpi mpich host hosts",
    },
    HelpTopic {
        name: "busbw",
        summary: "Bus bandwidth: how much of the hardware is used",
        text: include_str!("guide/busbw.txt"),
        others: "bandwidth bus-bandwidth bus",
    },
    HelpTopic {
        name: "algbw",
        summary: "Algorithm bandwidth: size over time",
        text: include_str!("guide/algbw.txt"),
        others: "algorithm-bandwidth",
    },
    HelpTopic {
        name: "latency",
        summary: "What small sizes show, and how to measure it",
        text: include_str!("guide/latency.txt"),
        others: "time timing statistics",
    },
    HelpTopic {
        name: "sizes",
        summary: "Which sizes are measured, and the memory they need",
        text: include_str!("guide/sizes.txt"),
        others: "size memory sweep",
    },
    HelpTopic {
        name: "verification",
        summary: "How results are checked, and what #wrong means",
        text: include_str!("guide/verification.txt"),
        others: "verify check checks wrong correctness",
    },
    HelpTopic {
        name: "doctor",
        summary: "Is the cluster set up right, and what is wrong?",
        text: include_str!("guide/doctor.txt"),
        others: "diagnosis diagnose health ras topo",
    },
    HelpTopic {
        name: "results",
        summary: "Files, comparing two runs, plots",
        text: include_str!("guide/results.txt"),
        others: "result output files json jsonl csv markdown comparing plots",
    },
    HelpTopic {
        name: "judging",
        summary: "What a machine should reach, and how it scales",
        text: include_str!("guide/judging.txt"),
        others: "judge judgement expectation ceiling floor ladder",
    },
    HelpTopic {
        name: "starts",
        summary: "Fresh starts: their differences, and comparisons (versus)",
        text: include_str!("guide/starts.txt"),
        others: "start versus speeds two-speeds noise significance",
    },
    HelpTopic {
        name: "algorithm",
        summary: "Which algorithm, protocol and channels NCCL chose",
        text: include_str!("guide/algorithm.txt"),
        others: "algorithms algo protocol proto channels tuning nvls ring tree",
    },
    HelpTopic {
        name: "registration",
        summary: "Registered buffers and symmetric windows (-R)",
        text: include_str!("guide/registration.txt"),
        others: "register windows window symmetric",
    },
    HelpTopic {
        name: "graphs",
        summary: "CUDA graphs (-G)",
        text: include_str!("guide/graphs.txt"),
        others: "graph cudagraph cuda-graphs",
    },
    HelpTopic {
        name: "nccl-tests",
        summary: "Coming from nccl-tests: names, flags, differences",
        text: include_str!("guide/nccl-tests.txt"),
        others: "nccltests migration compatibility",
    },
    HelpTopic {
        name: "environment",
        summary: "Variables that are read",
        text: include_str!("guide/environment.txt"),
        others: "env variables variable",
    },
    HelpTopic {
        name: "exit-codes",
        summary: "What the exit code says",
        text: include_str!("guide/exit-codes.txt"),
        others: "exit-code exit exitcodes codes status",
    },
    HelpTopic {
        name: "troubleshooting",
        summary: "Hangs, busbw 0, versions, containers, slow, wrong",
        text: include_str!("guide/troubleshooting.txt"),
        others: "trouble problems hang hangs slow faq docker container shm efa infiniband",
    },
];

/// Least similarity of two names, from 0 to 1, for the suggestion of one for the other.
const ALIKE: f64 = 0.8;

/// Returns all topics, name and summary, in reading order.
pub fn all_topics() -> impl ExactSizeIterator<Item = (&'static str, &'static str)> {
    TOPICS.iter().map(|topic| (topic.name, topic.summary))
}

/// Returns the text of a topic, at most 80 columns wide. The name may have upper case, `_` for `-`, or be a
/// synonym.
pub fn topic_text(name: &str) -> Option<&'static str> {
    let name = plain_name(name);
    TOPICS.iter().find(|topic| topic.all_names().any(|known| known == name)).map(|topic| topic.text)
}

/// Returns the topic with the name most similar to an unknown one.
fn likeliest_topic(name: &str) -> Option<&'static str> {
    let name = plain_name(name);
    let likeness = |topic: &HelpTopic| {
        topic.all_names().map(|other| strsim::jaro_winkler(&name, other)).fold(0.0, f64::max)
    };
    let alike =
        TOPICS.iter().map(|topic| (likeness(topic), topic.name)).filter(|(likeness, _)| *likeness > ALIKE);
    // Of equals, the first.
    alike.rev().max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

/// Returns the answer to an unknown name: a similar one, and all topics.
pub fn describe_unknown_topic(name: &str) -> String {
    let hint = likeliest_topic(name).map(|topic| format!("; did you mean '{topic}'?")).unwrap_or_default();
    format!("there is no topic '{name}'{hint}\n\n{}", list_topics())
}

/// Returns the subcommands of a command, to end a message: `; fabric has info, algorithms`.
pub fn list_subcommands(command: &clap::Command) -> String {
    let names: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
    let names = if names.is_empty() { "no commands".to_owned() } else { names.join(", ") };
    format!("; {} has {names}", command.get_name())
}

/// Returns all topics as text, one per line.
pub fn list_topics() -> String {
    let mut text = "Topics (nccl-bench help TOPIC):\n".to_owned();
    for (name, summary) in all_topics() {
        text += &format!("  {name:<16} {summary}\n");
    }
    text
}

fn plain_name(name: &str) -> String {
    name.trim().to_ascii_lowercase().replace([' ', '_'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_topic_is_short_and_fits_a_terminal() {
        for (name, summary) in all_topics() {
            let text = topic_text(name).unwrap();
            let lines = text.lines().count();
            assert!((20..=60).contains(&lines), "{name}: {lines} lines");
            for line in text.lines().chain(list_topics().lines()) {
                assert!(line.chars().count() <= 80, "{name}: {line}");
                assert_eq!(line, line.trim_end(), "{name}: blanks at the end");
                assert!(line.is_ascii(), "{name}: {line}");
            }
            assert!(text.ends_with('\n') && !text.ends_with("\n\n"), "{name}");
            assert!(!summary.ends_with('.'), "{name}: {summary}");
            assert!(text.contains("\n  $ "), "{name} has no example");
        }
    }

    #[test]
    fn a_topic_that_another_names_is_there() {
        let mut named = 0;
        for (name, _) in all_topics() {
            for rest in topic_text(name).unwrap().split("`nccl-bench help ").skip(1) {
                let other = rest.split('`').next().unwrap();
                assert!(all_topics().any(|(topic, _)| topic == other), "{name} names {other}");
                named += 1;
            }
        }
        assert!(named > 10, "{named}");
    }

    #[test]
    fn names_are_told_apart_and_slips_are_understood() {
        let names: Vec<_> = TOPICS.iter().flat_map(HelpTopic::all_names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert_eq!(topic_text("BUSBW"), topic_text("busbw"));
        assert_eq!(topic_text("exit codes"), topic_text("exit-codes"));
        assert_eq!(topic_text("nccl_tests"), topic_text("nccl-tests"));
        assert_eq!(topic_text("k8s"), topic_text("launchers"));
        assert_eq!(topic_text("bsubw"), None);
        assert_eq!(likeliest_topic("bsubw"), Some("busbw"));
        assert_eq!(likeliest_topic("regstration"), Some("registration"));
        assert_eq!(likeliest_topic("qqq"), None);
        assert!(describe_unknown_topic("enviroment").contains("did you mean 'environment'?"));
        let text = describe_unknown_topic("qqq");
        assert!(!text.contains("did you mean") && text.contains("troubleshooting"), "{text}");
    }

    #[test]
    fn factors_of_the_bus_bandwidth_are_those_that_are_used() {
        // The text's table against the definition.
        use engine::collective::Collective;
        for (line, collective) in
            [("  allreduce ", Collective::AllReduce), ("  allgather, ", Collective::AllGather)]
        {
            let row = topic_text("busbw").unwrap().lines().find(|row| row.starts_with(line)).unwrap();
            let mut columns = row.split_whitespace().rev();
            for ranks in [8, 2] {
                let factor = format!("{:.2}", collective.bus_factor(ranks));
                assert_eq!(columns.next(), Some(factor.as_str()), "{row}");
            }
        }
    }
}
