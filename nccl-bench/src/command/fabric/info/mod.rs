//! `nccl-bench fabric info`: the providers and endpoints that libfabric offers on this machine, and the reasons why one is
//! missing.
//!
//! `fold` merges similar entries into rows; `report` and `json` print them. Facts and reasons come from [`diagnosis`].

mod fold;
mod json;
mod report;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use collectives::fabric::{
    self, Capability, EndpointType, Hints, Library, LoadError, Registered, UnknownCapability,
};

use diagnosis::fabric::Entry;
use diagnosis::fabric::reasons::{self, Reason};
use diagnosis::host::rdma::{self, Host};
use engine::supervision::Stop;

use crate::exit::ExitError;

const EXAMPLES: &str = "\
Examples:
  nccl-bench fabric info                               all that libfabric offers here
  nccl-bench fabric info -p efa -t FI_EP_RDM           is EFA there, and if not, why
  nccl-bench fabric info -t rdm -c tagged,rma,hmem     who can do all of this
  nccl-bench fabric info -p tcp -d eth0 -v             all attributes
  nccl-bench fabric info -l                            the providers that libfabric was built with
  nccl-bench fabric info --json                        for programs (docs/results.md)

-p is libfabric's, as for fi_info: 'tcp' also brings what is built on it, as 'tcp;ofi_rxm'; 'tcp;ofi_rxm' only that;
'ofi_rxm' all that it is part of; '^shm' all but shm; 'tcp;^ofi_rxm' tcp alone.
Some capabilities are only there when asked for: those of ofi_rxm and sockets.
FABRIC_LIBRARY names the libfabric to load.

Exit codes: 0 something matches; 1 nothing does, and the output says why; 2 bad arguments, or no libfabric.";

/// The arguments of `nccl-bench fabric info`.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Only this provider, as libfabric takes it: tcp, shm, efa, 'verbs;ofi_rxm', ^shm, ...
    #[arg(short = 'p', long, value_name = "PROVIDER")]
    pub provider: Option<String>,

    /// Only endpoints of this type: FI_EP_RDM (or rdm), FI_EP_MSG (msg), FI_EP_DGRAM (dgram)
    #[arg(short = 't', long = "ep-type", alias = "ep_type", value_name = "TYPE")]
    pub endpoint: Option<EndpointType>,

    /// Only what can do all of this: MSG, TAGGED, RMA, ATOMIC, HMEM, ..., with commas or |
    #[arg(short = 'c', long = "caps", value_name = "CAPABILITIES")]
    pub capabilities: Vec<Capabilities>,

    /// Only this domain: a network interface or a device
    #[arg(short = 'd', long, value_name = "DOMAIN")]
    pub domain: Option<String>,

    /// Only this fabric
    #[arg(short = 'f', long, value_name = "FABRIC")]
    pub fabric: Option<String>,

    /// Only what reaches this peer: a host's name or address
    #[arg(short = 'n', long, value_name = "NODE")]
    pub node: Option<String>,

    /// The peer's port
    #[arg(short = 's', long, value_name = "SERVICE")]
    pub service: Option<String>,

    /// List the providers of the loaded libfabric, also those that find nothing here
    #[arg(
        short = 'l',
        long,
        conflicts_with_all = ["provider", "endpoint", "capabilities", "domain", "fabric", "node", "service", "verbose"]
    )]
    pub list: bool,

    /// All attributes of each entry
    #[arg(short = 'v', long)]
    pub verbose: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "verbose")]
    pub json: bool,
}

/// Several capabilities: `MSG,TAGGED` or `FI_MSG|FI_TAGGED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities(pub Vec<Capability>);

impl FromStr for Capabilities {
    type Err = UnknownCapability;

    fn from_str(text: &str) -> Result<Self, UnknownCapability> {
        text.split([',', '|']).map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl Arguments {
    fn hints(&self) -> Hints {
        let mut capabilities: Vec<Capability> = Vec::new();
        for capability in self.capabilities.iter().flat_map(|list| &list.0) {
            if !capabilities.contains(capability) {
                capabilities.push(*capability);
            }
        }
        Hints {
            provider: self.provider.clone(),
            fabric: self.fabric.clone(),
            domain: self.domain.clone(),
            endpoint: self.endpoint,
            capabilities,
            node: self.node.clone(),
            service: self.service.clone(),
        }
    }
}

/// Reason for which there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no libfabric.
    #[error("{}", without_library(.0))]
    Library(&'static LoadError),
    /// libfabric does not answer.
    #[error(transparent)]
    Fabric(#[from] fabric::Error),
    /// The output is closed or full.
    #[error("writing to standard output: {0}")]
    Output(#[from] io::Error),
}

impl From<Error> for ExitError {
    fn from(error: Error) -> Self {
        match error {
            Error::Output(error) => Self::Output(error),
            Error::Fabric(error) => Self::Stopped(Stop::Failed(error.into())),
            Error::Library(_) => Self::refused(error.to_string()),
        }
    }
}

fn without_library(error: &LoadError) -> String {
    let tried: Vec<String> =
        error.attempts().iter().map(|attempt| format!("{}: {}", attempt.place, attempt.reason)).collect();
    format!(
        "no usable libfabric was found ({}); install libfabric (Debian, Ubuntu: apt-get install libfabric1; AWS: the \
         EFA installer), or set FABRIC_LIBRARY to the path of libfabric.so.1",
        tried.join("; ")
    )
}

/// The content of the output, in either form.
struct Answer {
    library: LibraryFacts,
    hints: Hints,
    providers: Vec<Provider>,
    host: Host,
    /// The entries that match; `None` with `--list`.
    entries: Option<Vec<Entry>>,
    /// Reasons why nothing matches; empty when something does.
    reasons: Vec<Reason>,
}

/// The loaded libfabric.
struct LibraryFacts {
    version: String,
    path: PathBuf,
}

/// A provider of the loaded libfabric.
struct Provider {
    name: String,
    version: String,
    /// Number of entries that it takes part in, without a filter.
    entries: usize,
}

/// Asks libfabric, and prints the answer to `out`; returns true when something matches.
///
/// # Errors
/// Without a libfabric, when it does not answer, or when `out` is closed or full.
pub fn run(arguments: &Arguments, out: &mut impl Write) -> Result<bool, Error> {
    let library = Library::load().map_err(Error::Library)?;
    let variable = std::env::var("FI_PROVIDER").ok().filter(|value| !value.is_empty());
    let host = Host::look(Path::new("/"), std::env::var_os(rdma::SERVICE).as_deref());
    let answer = ask(library, arguments, host, variable.as_deref())?;
    if arguments.json {
        json::write(&answer, out)?;
    } else if arguments.list {
        report::providers(&answer, out)?;
    } else {
        report::entries(&answer, arguments.verbose, out)?;
    }
    out.flush()?;
    Ok(match &answer.entries {
        Some(entries) => !entries.is_empty(),
        None => !answer.providers.is_empty(),
    })
}

fn ask(
    library: &'static Library,
    arguments: &Arguments,
    host: Host,
    variable: Option<&str>,
) -> Result<Answer, Error> {
    let hints = arguments.hints();
    let discover = |hints: &Hints| {
        fabric::discover(library, hints).map(|found| found.into_iter().map(Entry::from).collect::<Vec<_>>())
    };
    let registered = fabric::registered(library)?;
    let all = discover(&Hints::default())?;
    let facts = LibraryFacts { version: library.version().to_string(), path: library.path().to_owned() };
    let (mut entries, mut reasons) = (None, Vec::new());
    if !arguments.list {
        let found = discover(&hints)?;
        if found.is_empty() {
            let of_provider = discover(&Hints { provider: hints.provider.clone(), ..Hints::default() })?;
            reasons = reasons::missing(&reasons::Facts {
                hints: &hints,
                all: &all,
                of_provider: &of_provider,
                registered: &registered,
                version: library.version(),
                path: library.path(),
                host: &host,
                variable,
            });
            reasons.extend(reasons::explain(&hints, &of_provider, discover)?);
        }
        entries = Some(found);
    }
    let providers = counted(&registered, &all);
    Ok(Answer { library: facts, hints, providers, host, entries, reasons })
}

fn counted(registered: &[Registered], all: &[Entry]) -> Vec<Provider> {
    registered
        .iter()
        .map(|Registered { name, version }| Provider {
            name: name.clone(),
            version: version.to_string(),
            entries: all.iter().filter(|entry| entry.provider.split(';').any(|part| part == name)).count(),
        })
        .collect()
}
