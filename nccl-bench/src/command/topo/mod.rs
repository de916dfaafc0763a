//! `nccl-bench topo`: GPUs, NVLink, PCIe, NUMA nodes and NICs of this host or of NCCL's files, and the paths
//! between them.

mod text;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{ArgMatches, Args as _, FromArgMatches as _};
use diagnosis::input;
use diagnosis::topology::graph::Graphs;
use diagnosis::topology::{self, Topology, TopologyDump};

use super::doctor::output;
use super::{Command, Context};
use crate::exit::{ExitError, print_text};

/// Exit code when neither a GPU nor a NIC was found.
const NOTHING_FOUND: u8 = 3;

/// Size limit of a file, in bytes. NCCL's files have a few MiB at most.
const LARGEST_FILE: u64 = 32 << 20;

const HELP: &str = "\
Examples:
  nccl-bench topo                       this machine, as nvidia-smi topo -m, and NCCL's choice
  nccl-bench topo topo.xml graph.xml    files of a job: NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE
  nccl-bench topo p5.48xl-topo.xml      a topology file of a cloud (NCCL_TOPO_FILE)

Exit code: 0 when there is a GPU or a NIC, 3 when there is none, 2 for files that cannot be read.
Findings do not change it; nccl-bench doctor host judges a machine.";

/// The command.
#[derive(Clone, Copy, Debug)]
pub struct Topo;

/// The arguments.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = HELP)]
pub struct TopoArguments {
    /// A topology of NCCL, its graphs, or both of one job [default: this machine]
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
}

impl Command for Topo {
    fn define_command(&self) -> clap::Command {
        TopoArguments::augment_args(clap::Command::new("topo"))
            .about("Show how GPUs and NICs are connected, on this host or in NCCL's files")
    }

    fn run_command(&self, matches: &ArgMatches, _context: &Context<'_>) -> Result<u8, ExitError> {
        let arguments = TopoArguments::from_arg_matches(matches)?;
        if output::is_left_to_rank_0() {
            return Ok(0);
        }
        let refused = |error: anyhow::Error| ExitError::refused(format!("{error:#}"));
        let read = Input::read_files(&arguments.files).map_err(refused)?;
        let examination = topology::examine_topology(read.topology.as_ref(), read.graphs.as_ref());
        let text = if arguments.json {
            let text = serde_json::to_string_pretty(&examination);
            text.map_err(|error| ExitError::refused(format!("the topology is not JSON: {error}")))? + "\n"
        } else {
            text::topology_text(&read, &examination)
        };
        print_text(&text)?;
        Ok(if read.is_empty() { NOTHING_FOUND } else { 0 })
    }
}

/// The topology, the graphs, or both.
#[derive(Debug, Default)]
struct Input {
    topology: Option<Topology>,
    graphs: Option<Graphs>,
}

impl Input {
    /// Reads the files, or this machine if none is given.
    fn read_files(files: &[PathBuf]) -> anyhow::Result<Self> {
        if files.is_empty() {
            return Ok(Self { topology: Some(topology::of_this_machine()), graphs: None });
        }
        let mut input = Self::default();
        for file in files {
            let name = file.display();
            match topology::read_dump(&read_text(file)?, &name.to_string())? {
                TopologyDump::Topology(_) if input.topology.is_some() => {
                    bail!("{name} is a second topology; give one topology and the graphs of the same job")
                }
                TopologyDump::Graphs(_) if input.graphs.is_some() => {
                    bail!("{name} is a second file of graphs; give the files of one job")
                }
                TopologyDump::Topology(topology) => input.topology = Some(topology),
                TopologyDump::Graphs(graphs) => input.graphs = Some(graphs),
            }
        }
        Ok(input)
    }

    fn is_empty(&self) -> bool {
        let devices = self.topology.as_ref().map_or(0, |topology| topology.gpus.len() + topology.nics.len());
        devices == 0 && self.graphs.is_none()
    }
}

fn read_text(file: &Path) -> anyhow::Result<String> {
    let name = file.display();
    let text =
        input::read_regular_file(file, LARGEST_FILE).with_context(|| format!("{name} cannot be read"))?;
    String::from_utf8(text).with_context(|| format!("{name} is not text; name a file of NCCL_TOPO_DUMP_FILE"))
}
