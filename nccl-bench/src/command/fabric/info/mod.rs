//! `nccl-bench fabric info`: libfabric's providers and endpoints on this machine, and the reasons for missing
//! ones.
//!
//! `fold` merges similar entries into rows; `report` prints them. `reasons` explains
//! missing ones from the facts of [`diagnosis`].

mod fold;
mod reasons;
mod report;

use std::io::{self, Write};
use std::net::ToSocketAddrs as _;
use std::path::Path;
use std::str::FromStr;

use collectives::UnknownName;
use collectives::fabric::{self, Capability, EndpointType, Hints, Info, Library, LoadError, Registered};
use serde::Serialize;

use diagnosis::host::nic::Nic;
use diagnosis::host::rdma::{self, Host};
use engine::supervision::Stop;

use crate::exit::ExitError;
use reasons::Reason;

const EXAMPLES: &str = "\
Examples:
  nccl-bench fabric info                               everything that libfabric offers here
  nccl-bench fabric info -p efa -t FI_EP_RDM           is EFA available, and if not, why
  nccl-bench fabric info -t rdm -c tagged,rma,hmem     providers with all of these capabilities
  nccl-bench fabric info -p tcp -d eth0 -v             all attributes
  nccl-bench fabric info -l                            the providers that libfabric was built with
  nccl-bench fabric info --json                        for programs (docs/results.md)

-p has the syntax of libfabric and fi_info: 'tcp' also lists providers layered on tcp, such as 'tcp;ofi_rxm';
'tcp;ofi_rxm' lists only this provider; 'ofi_rxm' lists all providers that contain it; '^shm' lists all but
shm; 'tcp;^ofi_rxm' lists tcp alone.
ofi_rxm and sockets offer some capabilities only if -c names them.
FABRIC_LIBRARY names the libfabric to load.

Exit codes: 0 something matches; 1 nothing matches (the output says why); 2 bad arguments, or no libfabric.";

/// The arguments of `nccl-bench fabric info`.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(after_help = EXAMPLES)]
pub struct FabricInfoArguments {
    /// Only this provider, in libfabric's syntax: tcp, shm, efa, 'verbs;ofi_rxm', ^shm, ...
    #[arg(short = 'p', long, value_name = "PROVIDER")]
    pub provider: Option<String>,

    /// Only endpoints of this type: FI_EP_RDM (or rdm), FI_EP_MSG (msg), FI_EP_DGRAM (dgram)
    #[arg(short = 't', long = "ep-type", alias = "ep_type", value_name = "TYPE")]
    pub endpoint: Option<EndpointType>,

    /// Only entries with all of these capabilities: MSG, TAGGED, RMA, ATOMIC, HMEM, ..., with commas or |
    #[arg(short = 'c', long = "caps", value_name = "CAPABILITIES")]
    pub capabilities: Vec<Capabilities>,

    /// Only this domain: a network interface or a device
    #[arg(short = 'd', long, value_name = "DOMAIN")]
    pub domain: Option<String>,

    /// Only this fabric
    #[arg(short = 'f', long, value_name = "FABRIC")]
    pub fabric: Option<String>,

    /// Only entries that reach this peer: a host's name or address
    #[arg(short = 'n', long, value_name = "NODE")]
    pub node: Option<String>,

    /// The peer's port
    #[arg(short = 's', long, value_name = "PORT", requires = "node")]
    pub service: Option<u16>,

    /// List the providers of the loaded libfabric, also those that find nothing here
    #[arg(
        short = 'l',
        long,
        conflicts_with_all = [
            "provider", "endpoint", "capabilities", "domain", "fabric", "node", "service", "verbose",
        ]
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
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        text.split([',', '|']).map(|name| name.trim().parse()).collect::<Result<_, _>>().map(Self)
    }
}

impl FabricInfoArguments {
    fn to_hints(&self) -> Hints {
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
            service: self.service.map(|port| port.to_string()),
        }
    }
}

fn without_library(error: &LoadError) -> String {
    let tried: Vec<String> =
        error.attempts().iter().map(|attempt| format!("{}: {}", attempt.place, attempt.reason)).collect();
    format!(
        "no usable libfabric was found ({}); install libfabric (Debian, Ubuntu: apt-get install libfabric1; \
         AWS: the EFA installer), or set FABRIC_LIBRARY to the path of libfabric.so.1",
        tried.join("; ")
    )
}

/// The content of the output, as text or JSON. `docs/results.md` describes the JSON.
#[derive(Serialize)]
struct Answer {
    schema_version: u32,
    program: String,
    host: String,
    libfabric: Libfabric,
    asked: Hints,
    providers: Vec<Provider>,
    devices: Vec<Nic>,
    /// The matching entries; `None` with `--list`.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<Info>>,
    /// Reasons for an empty result; empty when something matches.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasons: Vec<Reason>,
}

#[derive(Serialize)]
struct Libfabric {
    version: String,
    path: String,
}

#[derive(Serialize)]
struct Provider {
    name: String,
    version: String,
    /// Number of entries with this provider, without a filter.
    entries: usize,
}

/// Queries libfabric, and prints the answer to `out`. Returns true when something matches.
///
/// # Errors
/// Without a libfabric, when it does not answer, or when `out` is closed or full.
pub fn print_info(arguments: &FabricInfoArguments, out: &mut impl Write) -> Result<bool, ExitError> {
    arguments.node.as_deref().map_or(Ok(()), check_node)?;
    let library = Library::load().map_err(|error| ExitError::refused(without_library(error)))?;
    let variable = std::env::var("FI_PROVIDER").ok().filter(|value| !value.is_empty());
    let host = Host::read_host(Path::new("/"), std::env::var_os(rdma::SERVICE).as_deref());
    let answer = ask_libfabric(library, arguments, host, variable.as_deref())
        .map_err(|error| Stop::Failed(error.into()))?;
    print_answer(&answer, arguments, out).map_err(ExitError::Output)?;
    Ok(match &answer.entries {
        Some(entries) => !entries.is_empty(),
        None => !answer.providers.is_empty(),
    })
}

/// Refuses a host name without an address, since some providers ignore the node. An address in a provider's
/// own format, such as `fi_sockaddr_in://192.0.2.7:4000`, is left to libfabric.
fn check_node(node: &str) -> Result<(), ExitError> {
    if node.contains("://") {
        return Ok(());
    }
    match (node, 0).to_socket_addrs() {
        Ok(_) => Ok(()),
        Err(error) => Err(ExitError::refused(format!(
            "-n {node}: this host finds no address for the name ({error}); correct it, or give an address \
             (getent hosts {node})"
        ))),
    }
}

fn print_answer(answer: &Answer, arguments: &FabricInfoArguments, out: &mut impl Write) -> io::Result<()> {
    if arguments.json {
        serde_json::to_writer_pretty(&mut *out, answer)?;
        writeln!(out)?;
    } else if arguments.list {
        report::print_providers(answer, out)?;
    } else {
        report::print_entries(answer, arguments.verbose, out)?;
    }
    out.flush()
}

fn ask_libfabric(
    library: &'static Library,
    arguments: &FabricInfoArguments,
    host: Host,
    variable: Option<&str>,
) -> Result<Answer, fabric::Error> {
    let hints = arguments.to_hints();
    let discover = |hints: &Hints| fabric::discover(library, hints);
    let registered = fabric::registered(library)?;
    let all = discover(&Hints::default())?;
    let (mut entries, mut reasons) = (None, Vec::new());
    if !arguments.list {
        let found = discover(&hints)?;
        if found.is_empty() {
            let of_provider = discover(&Hints { provider: hints.provider.clone(), ..Hints::default() })?;
            reasons = reasons::explain_missing_provider(&reasons::ProviderFacts {
                hints: &hints,
                all: &all,
                of_provider: &of_provider,
                registered: &registered,
                version: library.version(),
                path: library.path(),
                host: &host,
                variable,
            });
            reasons.extend(reasons::explain_excluded_providers(&hints, &of_provider, discover)?);
        }
        entries = Some(found);
    }
    let takes_part = |name: &str, entry: &&Info| entry.provider.split(';').any(|part| part == name);
    let providers = registered.into_iter().map(|Registered { name, version }| Provider {
        version: version.to_string(),
        entries: all.iter().filter(|entry| takes_part(&name, entry)).count(),
        name,
    });
    Ok(Answer {
        schema_version: 1,
        program: format!("nccl-bench {}", crate::build::VERSION),
        host: collectives::world::host().name,
        libfabric: Libfabric {
            version: library.version().to_string(),
            path: library.path().to_string_lossy().into_owned(),
        },
        asked: hints,
        providers: providers.collect(),
        devices: host.devices,
        entries,
        reasons,
    })
}
