//! What a module's `.target` allows: its instructions, the shared memory of a block, and clusters.

use crate::error::LaunchError;
use crate::exec::state::cluster::MAX_BLOCKS;
use crate::module::Kernel;
use crate::options::Launch;

/// The targets that the emulator stands for, and KiB of shared memory that a block can have there.
const TARGETS: [(&str, u64); 10] = [
    ("sm_70", 96),
    ("sm_72", 96),
    ("sm_75", 64),
    ("sm_80", 163),
    ("sm_86", 99),
    ("sm_87", 163),
    ("sm_88", 163),
    ("sm_89", 99),
    ("sm_90", 227),
    ("sm_90a", 227),
];

/// What an instruction needs that not all of these targets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Sm72,
    Sm75,
    Sm80,
    Sm86,
    Sm89,
    Sm90,
    Sm90a,
    Sm100,
}

impl Need {
    /// Whether the target of this name has it.
    fn is_met(self, target: &str) -> bool {
        match self {
            Need::Sm72 => target != "sm_70",
            Need::Sm75 => !matches!(target, "sm_70" | "sm_72"),
            Need::Sm80 => !matches!(target, "sm_70" | "sm_72" | "sm_75"),
            Need::Sm86 => Need::Sm80.is_met(target) && target != "sm_80",
            Need::Sm89 => target == "sm_89" || Need::Sm90.is_met(target),
            Need::Sm90 => matches!(target, "sm_90" | "sm_90a"),
            Need::Sm90a => target == "sm_90a",
            Need::Sm100 => false,
        }
    }

    /// The targets that have it, as errors say it.
    fn text(self) -> &'static str {
        match self {
            Need::Sm72 => "sm_72 or newer",
            Need::Sm75 => "sm_75 or newer",
            Need::Sm80 => "sm_80 or newer",
            Need::Sm86 => "sm_86 or newer",
            Need::Sm89 => "sm_89 or newer",
            Need::Sm90 => "sm_90 or newer",
            Need::Sm90a => "sm_90a",
            Need::Sm100 => "sm_100 or newer",
        }
    }
}

/// Special registers of clusters.
const CLUSTER_REGISTERS: [&str; 8] = [
    "%clusterid",
    "%nclusterid",
    "%cluster_ctaid",
    "%cluster_nctaid",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
    "%aggr_smem_size",
];

/// Bytes of shared memory that a block can have on the kernel's target, if it is one of those above.
pub fn shared_bytes(kernel: &Kernel) -> Result<u64, LaunchError> {
    let target = kernel.module.target.as_str();
    if let Some(&(_, kibibytes)) = TARGETS.iter().find(|(known, _)| *known == target) {
        return Ok(kibibytes * 1024);
    }
    let expected = TARGETS.map(|(target, _)| target).join(", ");
    let got = if target.is_empty() { "none" } else { target }.to_string();
    Err(LaunchError::Target { kernel: kernel.name().to_string(), expected, got })
}

/// The blocks of a cluster of a launch, and whether it or its kernel asks for clusters. A kernel counts as
/// one that is allowed clusters of more blocks than are portable.
pub fn cluster(kernel: &Kernel, launch: &Launch<'_>) -> Result<([u32; 3], bool), LaunchError> {
    let name = || kernel.name().to_string();
    let (required, explicit) = (kernel.data.required_cluster, kernel.data.explicit_cluster);
    let cluster = match (required, launch.cluster) {
        (Some(expected), Some(got)) if expected != got => {
            return Err(LaunchError::RequiredCluster { kernel: name(), expected, got });
        }
        (None, None) if explicit => return Err(LaunchError::ExplicitCluster { kernel: name() }),
        (None, None) => return Ok(([1; 3], false)),
        (required, given) => required.or(given).unwrap_or([1; 3]),
    };
    let limit = kernel.data.max_cluster.unwrap_or(MAX_BLOCKS).min(MAX_BLOCKS);
    let blocks = cluster.iter().map(|&size| u64::from(size)).try_fold(1, u64::checked_mul);
    if !blocks.is_some_and(|blocks| (1..=u64::from(limit)).contains(&blocks)) {
        return Err(LaunchError::Cluster { kernel: name(), cluster, limit });
    }
    if launch.grid.iter().zip(cluster).any(|(&grid, size)| !grid.is_multiple_of(size)) {
        return Err(LaunchError::ClusterGrid { kernel: name(), grid: launch.grid, cluster });
    }
    let got = &kernel.module.target;
    if blocks != Some(1) && !Need::Sm90.is_met(got) {
        return Err(LaunchError::ClusterTarget { kernel: name(), cluster, got: got.clone() });
    }
    Ok((cluster, true))
}

/// Refuses a kernel with an instruction that its target does not have.
pub fn check_instructions(kernel: &Kernel) -> Result<(), LaunchError> {
    let (target, source) = (&kernel.module.target, &kernel.module.source);
    let find = || {
        let mut texts = kernel.data.code.texts.iter().enumerate();
        texts.find_map(|(pc, &(start, end))| {
            let need = need(source.get(start as usize..end as usize)?)?;
            (!need.is_met(target)).then_some((pc as u32, need.text()))
        })
    };
    let Some((pc, expected)) = *kernel.data.too_new.get_or_init(find) else { return Ok(()) };
    let (line, text, got) = (kernel.line(pc), kernel.text(pc), target.clone());
    Err(LaunchError::TargetInstruction { kernel: kernel.name().to_string(), line, text, expected, got })
}

/// What the instruction of this text needs. Where PTX leaves it open, nothing.
fn need(text: &str) -> Option<Need> {
    let (opcode, operands) = split(text);
    let words: Vec<&str> = opcode.split('.').collect();
    let has = |word: &str| words[1..].contains(&word);
    let is_bfloat = |word: &&str| matches!(*word, "bf16" | "bf16x2");
    let of_bfloats = words.last().is_some_and(is_bfloat);
    let of_cluster = has("cluster") || has("shared::cluster");
    let is_new = match words[0] {
        "wgmma" | "setmaxnreg" => return Some(Need::Sm90a),
        "tensormap" if has("replace") => return Some(Need::Sm90a),
        "ld" | "st" if (has("v8") && bits(&words) == 32) || (has("v4") && bits(&words) == 64) => {
            return Some(Need::Sm100);
        }
        "cvt" | "mma" if words.iter().any(|word| is_byte_float(word)) => return Some(Need::Sm89),
        "elect" | "griddepcontrol" | "mapa" | "getctarank" | "stmatrix" | "multimem" | "tensormap" => {
            true
        }
        "barrier" => has("cluster"),
        "fence" => {
            of_cluster
                || has("mbarrier_init")
                || has("tensormap::generic")
                || (has("proxy") && has("async"))
        }
        "mbarrier" => {
            let counts = (has("arrive") || has("arrive_drop")) && operands.matches(',').count() > 1;
            let with_bytes = has("expect_tx") || has("complete_tx");
            let is_new = has("try_wait") || has("relaxed");
            of_cluster || with_bytes || is_new || (counts && !has("noComplete"))
        }
        "cp" => has("bulk"),
        "prefetch" => has("tensormap"),
        "ld" | "ldu" | "st" | "cvta" | "isspacep" => of_cluster || has("async"),
        "atom" | "red" => {
            let is_vector = ["v2", "v4", "v8", "b128"].iter().any(|word| has(word));
            of_cluster || has("async") || is_vector || of_bfloats
        }
        "add" | "min" | "max" if has("u16x2") || has("s16x2") || (has("relu") && has("s32")) => true,
        "add" | "sub" | "mul" | "ex2" | "tanh" | "setp" => of_bfloats,
        "set" => words[1..].iter().any(is_bfloat),
        "fma" => has("oob"),
        "mma" => has("f64") && !has("m8n8k4"),
        "cvt" => match words[1..] {
            [.., "ftz", "f32", "bf16"] | ["rn" | "rz", .., "tf32", "f32"] => true,
            [.., "bf16" | "bf16x2", "f32"] | [.., "f32", "bf16"] => false,
            [.., to, from] => is_bfloat(&to) || is_bfloat(&from),
            _ => false,
        },
        "mov" => {
            let word = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '%'));
            if operands.split(word).any(|name| name.starts_with("%reserved_smem_offset_")) {
                return Some(Need::Sm80);
            }
            operands.split(word).any(|name| CLUSTER_REGISTERS.contains(&name))
        }
        _ => false,
    };
    is_new.then_some(Need::Sm90).or_else(|| need_behind_volta(&words))
}

/// The same of what every target from sm_80 on has, and sm_70 or sm_75 does not.
fn need_behind_volta(words: &[&str]) -> Option<Need> {
    let has = |word: &str| words[1..].contains(&word);
    let of_bfloats = words[1..].iter().any(|word| matches!(*word, "bf16" | "bf16x2"));
    let of_halves = words.last().is_some_and(|word| matches!(*word, "f16" | "f16x2"));
    match words[0] {
        "ldmatrix" | "movmatrix" | "tanh" => Some(Need::Sm75),
        "wmma" => match words.iter().find(|word| word.starts_with('m') && word.len() > 4) {
            Some(&"m16n16k8" | &"m8n8k4") => Some(Need::Sm80),
            Some(&"m8n8k32" | &"m8n8k128") => Some(if has("and") { Need::Sm80 } else { Need::Sm75 }),
            _ if of_bfloats => Some(Need::Sm80),
            _ if ["s8", "u8", "s32"].iter().any(|word| has(word)) => Some(Need::Sm72),
            _ => None,
        },
        // That of 8 x 8 x 4 is the one of sm_70, and these are those of sm_75.
        "mma" if has("sp") => Some(Need::Sm80),
        "mma" => match words.iter().find(|word| word.starts_with('m') && word.len() > 3) {
            Some(&"m8n8k4") if has("f16") && !has("f64") => None,
            Some(&"m8n8k128") if has("and") => Some(Need::Sm80),
            Some(&"m8n8k16" | &"m8n8k32" | &"m8n8k128") => Some(Need::Sm75),
            Some(&"m16n8k8") if !of_bfloats && !has("tf32") => Some(Need::Sm75),
            _ => Some(Need::Sm80),
        },
        "cp" | "mbarrier" | "redux" | "createpolicy" | "discard" | "applypriority" => Some(Need::Sm80),
        "min" | "max" if has("xorsign") => Some(Need::Sm86),
        "min" | "max" if of_halves || has("NaN") => Some(Need::Sm80),
        "ex2" if of_halves => Some(Need::Sm75),
        "fma" if has("relu") => Some(Need::Sm80),
        "cvt" if has("tf32") || has("relu") || words.ends_with(&["f16x2", "f32"]) => Some(Need::Sm80),
        _ if has("L2::cache_hint") || has("L2::256B") => Some(Need::Sm80),
        "prefetch" if words[1..].iter().any(|word| word.starts_with("L2::")) => Some(Need::Sm80),
        // What moves 16 bits as they are is of every target.
        "mov" | "ld" | "st" | "selp" => None,
        _ => of_bfloats.then_some(Need::Sm80),
    }
}

/// Whether a type is one of floats of 8 bits.
fn is_byte_float(name: &str) -> bool {
    matches!(name, "e4m3" | "e5m2" | "e4m3x2" | "e5m2x2")
}

/// The opcode of an instruction behind its guard, and its operands.
fn split(text: &str) -> (&str, &str) {
    let text = match text.strip_prefix('@') {
        Some(guarded) => guarded.trim_start_matches(|c: char| c == '!' || c.is_whitespace()),
        None => text,
    };
    let text = if text.starts_with('%') {
        text.split_once(char::is_whitespace).map_or("", |(_, rest)| rest.trim_start())
    } else {
        text
    };
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_')));
    text.split_at(end.unwrap_or(text.len()))
}

/// Bits of the type at the end of an opcode; 0 where it is none of the usual ones.
fn bits(words: &[&str]) -> u32 {
    match words.last() {
        Some(&("b32" | "u32" | "s32" | "f32")) => 32,
        Some(&("b64" | "u64" | "s64" | "f64")) => 64,
        _ => 0,
    }
}
