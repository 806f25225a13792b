//! Element types of GGUF tensors: which there are, and how many bytes hold how many elements.

/// A supported element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)]
pub enum GgmlType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

use GgmlType::*;

/// Type id in the file, type, name, elements of a block, bytes of a block.
const TABLE: [(u32, GgmlType, &str, usize, usize); 13] = [
    (0, F32, "F32", 1, 4),
    (1, F16, "F16", 1, 2),
    (2, Q4_0, "Q4_0", 32, 18),
    (3, Q4_1, "Q4_1", 32, 20),
    (6, Q5_0, "Q5_0", 32, 22),
    (7, Q5_1, "Q5_1", 32, 24),
    (8, Q8_0, "Q8_0", 32, 34),
    (10, Q2_K, "Q2_K", 256, 84),
    (11, Q3_K, "Q3_K", 256, 110),
    (12, Q4_K, "Q4_K", 256, 144),
    (13, Q5_K, "Q5_K", 256, 176),
    (14, Q6_K, "Q6_K", 256, 210),
    (30, BF16, "BF16", 1, 2),
];

/// Names of the types that are refused, so that a refusal can say them.
const REFUSED: [(u32, &str); 29] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
    (39, "MXFP4"),
    (40, "NVFP4"),
    (41, "Q1_0"),
];

impl GgmlType {
    /// Every supported type.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        TABLE.iter().map(|row| row.1)
    }

    /// The type with this id, or the end of a sentence that begins with the tensor's name.
    pub fn from_id(id: u32) -> Result<GgmlType, String> {
        if let Some(row) = TABLE.iter().find(|row| row.0 == id) {
            return Ok(row.1);
        }
        Err(match REFUSED.iter().find(|row| row.0 == id) {
            Some((_, name)) => format!("is of type {name}, which snug does not dequantise"),
            None => format!("is of unknown type {id}"),
        })
    }

    fn row(self) -> &'static (u32, GgmlType, &'static str, usize, usize) {
        TABLE.iter().find(|row| row.1 == self).expect("TABLE has a row for every variant")
    }

    /// The id in the file.
    pub fn id(self) -> u32 {
        self.row().0
    }

    /// The usual name.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Elements of a block.
    pub fn block_len(self) -> usize {
        self.row().3
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().4
    }
}
