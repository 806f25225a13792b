//! The embedded fatbins and the names of the kernels in them.

/// One kernel family's code for every supported GPU.
#[derive(Debug)]
pub struct Image {
    /// `kernels/<family>.cu`
    pub family: &'static str,
    /// The fatbin.
    pub bytes: &'static [u8],
    /// Entry points.
    pub kernels: &'static [&'static str],
    /// What it was built for: `sm_80`, `sm_90a`, `ptx_80`.
    pub targets: &'static [&'static str],
}

/// How a device would run these kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Coverage {
    /// Not at all.
    None,
    /// From this PTX, which the driver compiles when they are loaded.
    Ptx(&'static str),
    /// From this machine code.
    Code(&'static str),
}

impl Coverage {
    /// The image's name, if there is one.
    pub fn image(self) -> Option<&'static str> {
        match self {
            Coverage::None => None,
            Coverage::Ptx(image) | Coverage::Code(image) => Some(image),
        }
    }

    /// Whether kernels that need sm_90 instructions are more than empty here.
    pub fn has_bulk_copies(self) -> bool {
        self.image().and_then(target).is_some_and(|t| t.major >= 9)
    }

    fn of(targets: &'static [&'static str], capability: (u32, u32)) -> Coverage {
        let runs = |name: &&'static str| match target(name) {
            Some(t) if t.covers(capability) && t.ptx => Coverage::Ptx(name),
            Some(t) if t.covers(capability) => Coverage::Code(name),
            _ => Coverage::None,
        };
        // Of several the newest: the driver chooses so.
        let newest = |c: &Coverage| (!matches!(c, Coverage::Ptx(_)), c.image().and_then(target));
        let all = targets.iter().map(runs).filter(|c| *c != Coverage::None);
        all.max_by_key(newest).unwrap_or(Coverage::None)
    }
}

/// How a device of this compute capability runs the kernels: as its least served family.
pub fn coverage(capability: (u32, u32)) -> Coverage {
    let all = IMAGES.iter().map(|image| Coverage::of(image.targets, capability));
    all.min_by_key(|c| match c {
        Coverage::None => 0,
        Coverage::Ptx(_) => 1,
        Coverage::Code(_) => 2,
    })
    .unwrap_or(Coverage::None)
}

/// A name like `sm_90a` taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    major: u32,
    minor: u32,
    ptx: bool,
    /// `a`: this capability alone.
    exact: bool,
}

fn target(name: &str) -> Option<Target> {
    let (kind, number) = name.split_once('_')?;
    let digits = number.trim_end_matches(['a', 'f']);
    let number: u32 = digits.parse().ok()?;
    let exact = name.ends_with('a');
    Some(Target { major: number / 10, minor: number % 10, ptx: kind == "ptx", exact })
}

impl Target {
    /// Machine code runs on its own major version from its minor one on, PTX on everything as new.
    fn covers(self, (major, minor): (u32, u32)) -> bool {
        match self {
            Target { exact: true, .. } => (self.major, self.minor) == (major, minor),
            Target { ptx: true, .. } => (self.major, self.minor) <= (major, minor),
            _ => self.major == major && self.minor <= minor,
        }
    }
}

/// `include_bytes!` promises no alignment; the driver's loader wants some.
#[repr(C, align(64))]
struct Aligned<const N: usize>([u8; N]);

include!(concat!(env!("OUT_DIR"), "/images.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_capability_finds_its_image() {
        const TARGETS: &[&str] = &["sm_80", "sm_90a", "sm_100f", "sm_120f", "ptx_80"];
        for (capability, want, bulk) in [
            ((7, 5), Coverage::None, false),
            ((8, 0), Coverage::Code("sm_80"), false),
            ((8, 9), Coverage::Code("sm_80"), false),
            ((9, 0), Coverage::Code("sm_90a"), true),
            ((10, 0), Coverage::Code("sm_100f"), true),
            ((10, 3), Coverage::Code("sm_100f"), true),
            // Built from PTX for sm_80, where kernels with bulk copies are empty.
            ((11, 0), Coverage::Ptx("ptx_80"), false),
            ((12, 1), Coverage::Code("sm_120f"), true),
            ((13, 0), Coverage::Ptx("ptx_80"), false),
        ] {
            let got = Coverage::of(TARGETS, capability);
            assert_eq!(got, want, "{capability:?}");
            assert_eq!(got.has_bulk_copies(), bulk, "{capability:?}");
        }
        assert_eq!(coverage((7, 5)), Coverage::None);
        assert_eq!(coverage((8, 6)), Coverage::Code("sm_80"));
        assert!(coverage((9, 0)).has_bulk_copies());
    }
}
