//! The software and the machine of the judged variables.

use std::fs;
use std::path::Path;

use semver::Version;
use serde::Serialize;

/// Newest NCCL in the table of names.
pub const NEWEST_NCCL: Version = Version::new(2, 32, 3);
/// Newest aws-ofi-nccl in the table of names.
pub const NEWEST_PLUGIN: Version = Version::new(1, 21, 1);
/// Newest libfabric in the table of names.
pub const NEWEST_LIBFABRIC: Version = Version::new(2, 6, 0);

/// The largest EC2 instance of each family with accelerators or EFA, for the look-up of a family.
const INSTANCES: [&str; 38] = [
    "p3.16xlarge",
    "p3dn.24xlarge",
    "p4d.24xlarge",
    "p4de.24xlarge",
    "p5.48xlarge",
    "p5e.48xlarge",
    "p5en.48xlarge",
    "p6-b200.48xlarge",
    "p6-b300.48xlarge",
    "p6e-gb200.36xlarge",
    "g4dn.metal",
    "g5.48xlarge",
    "g5g.metal",
    "g6.48xlarge",
    "g6e.48xlarge",
    "gr6.8xlarge",
    "g6f.4xlarge",
    "g7e.48xlarge",
    "trn1.32xlarge",
    "trn1n.32xlarge",
    "trn2.48xlarge",
    "trn2u.48xlarge",
    "inf1.24xlarge",
    "inf2.48xlarge",
    "hpc6a.48xlarge",
    "hpc6id.32xlarge",
    "hpc7a.96xlarge",
    "hpc7g.16xlarge",
    "c5n.18xlarge",
    "c6i.32xlarge",
    "c7i.48xlarge",
    "m5.24xlarge",
    "m6i.32xlarge",
    "m7i.48xlarge",
    "r6i.32xlarge",
    "r7i.48xlarge",
    "i4i.32xlarge",
    "dl1.24xlarge",
];

/// The software and the machine. The newest version in the table replaces an unknown version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Situation {
    /// Version of NCCL.
    pub nccl: Option<Version>,
    /// Version of aws-ofi-nccl.
    pub plugin: Option<Version>,
    /// Version of libfabric.
    pub libfabric: Option<Version>,
    /// The machine.
    pub platform: Option<Platform>,
    /// Number of nodes of the job.
    pub nodes: Option<u32>,
    /// True for a host with visible RDMA devices.
    pub rdma: Option<bool>,
}

/// A machine, with its words for rules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Platform {
    /// The product's name: `p5.48xlarge`.
    pub name: String,
    /// `aws`, the family `p5`, `spark`.
    pub words: Vec<String>,
}

impl Situation {
    /// Returns the version of NCCL to judge for.
    pub fn nccl_version(&self) -> Version {
        self.nccl.clone().unwrap_or(NEWEST_NCCL)
    }

    /// Returns the version of aws-ofi-nccl to judge for.
    pub fn plugin_version(&self) -> Version {
        self.plugin.clone().unwrap_or(NEWEST_PLUGIN)
    }

    /// Returns the version of libfabric to judge for.
    pub fn libfabric_version(&self) -> Version {
        self.libfabric.clone().unwrap_or(NEWEST_LIBFABRIC)
    }
}

impl Platform {
    /// Reads a user's name for a machine.
    ///
    /// # Errors
    /// A sentence with the nearest known machine.
    pub fn parse(name: &str) -> Result<Self, String> {
        let lower = name.trim().to_ascii_lowercase();
        let (family, size) = match lower.split_once('.') {
            Some((family, size)) => (family, Some(size)),
            None => (lower.as_str(), None),
        };
        let same = INSTANCES.iter().copied().find(|known| known.split('.').next() == Some(family));
        let is_spark = size.is_none() && (lower.contains("spark") || lower.contains("gb10"));
        if is_spark || lower == "aws" || same.is_some() && size.is_none_or(is_instance_size) {
            return Ok(Self::from_product(name));
        }
        let distance = |known: &str| strsim::damerau_levenshtein(known, &lower);
        let known = INSTANCES.iter().copied().chain(["spark", "aws"]);
        let near = known.filter(|known| distance(known) <= known.len().div_ceil(5));
        let nearest = same.or_else(|| near.min_by_key(|known| distance(known)));
        Err(match nearest {
            Some(nearest) => format!("{name:?} is not a known machine: did you mean {nearest}?"),
            None => format!(
                "{name:?} is not a known machine: give an EC2 instance type such as p5.48xlarge, or aws, or \
                 spark"
            ),
        })
    }

    /// Returns a machine by its product's name, or by a word such as `aws`, `p5`, `spark`.
    pub fn from_product(name: &str) -> Self {
        let name = name.trim();
        let lower = name.to_ascii_lowercase();
        let family = lower.split('.').next().unwrap_or_default().to_owned();
        let mut words = vec![lower.clone()];
        if lower.contains("spark") || lower.contains("gb10") {
            words.push("spark".to_owned());
        }
        if is_instance_family(&family) {
            words.push("aws".to_owned());
            // The smallest p5 has one GPU, and aws-ofi-nccl treats it differently.
            if lower != "p5.4xlarge" {
                words.push(family);
            }
        }
        words.sort();
        words.dedup();
        Self { name: name.to_owned(), words }
    }

    /// Reads the machine's name from DMI below `root`, as aws-ofi-nccl does.
    pub fn detect_platform(root: &Path) -> Option<Self> {
        let read = |file: &str| {
            let text = fs::read_to_string(root.join("sys/devices/virtual/dmi/id").join(file)).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        let mut platform = Self::from_product(&read("product_name")?);
        // Servers of other vendors have names such as G492-ID0.
        if read("sys_vendor").is_some_and(|vendor| vendor.contains("Amazon")) {
            platform.words.push("aws".to_owned());
        } else {
            platform.words.retain(|word| word != "aws");
        }
        platform.words.sort();
        platform.words.dedup();
        Some(platform)
    }

    /// Returns true for a word of the machine.
    pub fn has_word(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }
}

/// Returns true for sizes of EC2 instances: `large`, `48xlarge`, `metal-24xl`.
fn is_instance_size(size: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let metal = size.strip_prefix("metal-").and_then(|rest| rest.strip_suffix("xl"));
    matches!(size, "medium" | "large" | "xlarge" | "metal")
        || size.strip_suffix("xlarge").or(metal).is_some_and(is_number)
}

/// Returns true for families of EC2 instances with accelerators: `p4d`, `p5en`, `p6-b200`, `g6e`, `trn1n`.
fn is_instance_family(family: &str) -> bool {
    let letters = family.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(family.len());
    let (kind, rest) = family.split_at(letters);
    matches!(kind, "p" | "g" | "trn" | "inf" | "hpc")
        && rest.starts_with(|digit: char| digit.is_ascii_digit())
        && rest.len() <= 8
}

/// Reads a version of three numbers. The last one may be missing for software other than NCCL: `v1.16.2-aws`.
///
/// # Errors
/// A sentence about the notation of versions.
pub fn parse_version(text: &str) -> Result<Version, String> {
    let number = text.trim().trim_start_matches('v');
    let number = number.split(['-', '+', ' ', 'a', 'r', 'b']).next().unwrap_or_default();
    let parts: Option<Vec<u64>> = number.split('.').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some(&[major, minor]) => Ok(Version::new(major, minor, 0)),
        Some(&[major, minor, patch]) => Ok(Version::new(major, minor, patch)),
        _ => Err(format!("{text:?} is not a version: write it as 2.28.9")),
    }
}
