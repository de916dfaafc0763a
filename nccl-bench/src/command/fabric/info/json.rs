//! The answer as JSON; `docs/results.md` describes it.

use std::io::{self, Write};

use serde::Serialize;

use super::{Answer, report};
use diagnosis::fabric::Entry;
use diagnosis::fabric::reasons::Reason;
use diagnosis::host::rdma::RdmaDevice;

const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct InfoDocument<'a> {
    schema_version: u32,
    program: String,
    host: String,
    libfabric: Libfabric<'a>,
    asked: Asked<'a>,
    providers: Vec<ProviderJson<'a>>,
    devices: &'a [RdmaDevice],
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<&'a [Entry]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    reasons: &'a [Reason],
}

#[derive(Serialize)]
struct Libfabric<'a> {
    version: &'a str,
    path: String,
}

#[derive(Serialize)]
struct Asked<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    provider: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    capabilities: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fabric: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
}

#[derive(Serialize)]
struct ProviderJson<'a> {
    name: &'a str,
    version: &'a str,
    entries: usize,
}

pub(super) fn write(answer: &Answer, out: &mut impl Write) -> io::Result<()> {
    let hints = &answer.hints;
    let document = InfoDocument {
        schema_version: SCHEMA_VERSION,
        program: format!("nccl-bench {}", crate::build::VERSION),
        host: report::host_name(),
        libfabric: Libfabric {
            version: &answer.library.version,
            path: answer.library.path.to_string_lossy().into_owned(),
        },
        asked: Asked {
            provider: hints.provider.as_deref(),
            endpoint: hints.endpoint.map(|kind| kind.name()),
            capabilities: hints.capabilities.iter().map(|capability| capability.name()).collect(),
            domain: hints.domain.as_deref(),
            fabric: hints.fabric.as_deref(),
            node: hints.node.as_deref(),
            service: hints.service.as_deref(),
        },
        providers: answer
            .providers
            .iter()
            .map(|each| ProviderJson { name: &each.name, version: &each.version, entries: each.entries })
            .collect(),
        devices: &answer.host.devices,
        entries: answer.entries.as_deref(),
        reasons: &answer.reasons,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}
