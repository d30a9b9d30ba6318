//! What `ork top` measures at one moment, and what a recording of it comes down to.

use serde::Serialize;

use crate::activity::Activity;
use crate::output::Table;
use crate::sensors::Loads;

/// First line of a recording.
pub(super) const HEADER: &str = "seconds,core0_percent,core1_percent,core2_percent,npu_percent,ddr_percent,ddr_mhz,mapped_bytes,hits,loads,stall_seconds";

/// Everything at one moment.
#[derive(Serialize)]
pub(super) struct Sample {
    pub(super) seconds: f64,
    pub(super) loads: Loads,
    pub(super) programs: Vec<Activity>,
}

/// What a recording comes down to.
#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) samples: usize,
    pub(super) command_code: Option<i32>,
    pub(super) figures: Vec<Figure>,
}

/// One series of a recording.
#[derive(Serialize)]
pub(super) struct Figure {
    name: String,
    median: f64,
    maximum: f64,
}

/// Load of each core: what the kernel says, else what programs say of simulated ones, each of which
/// has cores of its own; the busiest counts.
pub(super) fn core_loads(sample: &Sample) -> Vec<f64> {
    if let Some(cores) = &sample.loads.cores {
        return cores.clone();
    }
    let mut busiest: Vec<f64> = Vec::new();
    for cores in sample.programs.iter().map(|program| &program.cores) {
        busiest.resize(busiest.len().max(cores.len()), 0.0);
        busiest.iter_mut().zip(cores).for_each(|(most, load)| *most = most.max(*load));
    }
    busiest
}

/// Everything a sample measures, by name.
fn values(sample: &Sample) -> Vec<(String, f64)> {
    let mut all = Vec::new();
    for (core, load) in core_loads(sample).into_iter().enumerate() {
        all.push((format!("core {core} load, %"), load));
    }
    all.extend(sample.loads.npu.map(|load| ("NPU load, %".into(), load)));
    all.extend(sample.loads.memory.map(|load| ("DDR load, %".into(), load)));
    if !sample.programs.is_empty() {
        all.push(("mapped, MiB".into(), mapped(sample) as f64 / (1 << 20) as f64));
    }
    all
}

fn mapped(sample: &Sample) -> u64 {
    sample.programs.iter().flat_map(|program| &program.domains).map(|domain| domain.mapped).sum()
}

/// A line under [`HEADER`]; what nobody reports is empty.
pub(super) fn csv(sample: &Sample) -> String {
    let cell = |value: Option<f64>| value.map_or(String::new(), |v| format!("{v}"));
    let cores = core_loads(sample);
    let core = |index: usize| cores.get(index).map_or(String::new(), |v| format!("{v:.1}"));
    let programs = &sample.programs;
    let of_programs = |text: String| if programs.is_empty() { String::new() } else { text };
    // Not `sum`: that of nothing is -0.
    let stalled = programs.iter().fold(0.0, |sum, program| sum + program.stall_seconds);
    format!(
        "{:.3},{},{},{},{},{},{},{},{},{},{}",
        sample.seconds,
        core(0),
        core(1),
        core(2),
        cell(sample.loads.npu),
        cell(sample.loads.memory),
        cell(sample.loads.memory_mhz),
        of_programs(mapped(sample).to_string()),
        of_programs(programs.iter().map(|program| program.hits).sum::<u64>().to_string()),
        of_programs(programs.iter().map(|program| program.loads).sum::<u64>().to_string()),
        of_programs(format!("{stalled:.6}")),
    )
}

/// Median and maximum of each series.
pub(super) fn figures(samples: &[Sample]) -> Vec<Figure> {
    let mut series: Vec<(String, Vec<f64>)> = Vec::new();
    for (name, value) in samples.iter().flat_map(values) {
        match series.iter_mut().find(|(known, _)| *known == name) {
            Some((_, all)) => all.push(value),
            None => series.push((name, vec![value])),
        }
    }
    series
        .into_iter()
        .map(|(name, mut all)| {
            all.sort_by(f64::total_cmp);
            // A series begins with its first value, so it is never empty.
            let maximum = all[all.len() - 1];
            // The middle one, or the mean of the two in the middle.
            let median = (all[(all.len() - 1) / 2] + all[all.len() / 2]) / 2.0;
            Figure { name, median, maximum }
        })
        .collect()
}

/// A summary as a table.
pub(super) fn text(summary: &Summary) -> String {
    if summary.figures.is_empty() {
        return format!("{} samples; nothing here reports a load", summary.samples);
    }
    let mut table = Table::new(["", "median", "maximum"]);
    for figure in &summary.figures {
        let number = |value: f64| format!("{value:.1}");
        table.row([figure.name.clone(), number(figure.median), number(figure.maximum)]);
    }
    format!("{table}\n{} samples", summary.samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(core: f64, ddr: f64) -> Sample {
        let loads = Loads { cores: Some(vec![core]), memory: Some(ddr), ..Loads::default() };
        Sample { seconds: 0.5, loads, programs: Vec::new() }
    }

    #[test]
    fn medians_and_maxima_are_per_series() {
        let figures = figures(&[sample(1.0, 2.0), sample(9.0, 13.0), sample(5.0, 2.0)]);
        let of = |name: &str| figures.iter().find(|f| f.name.starts_with(name)).unwrap();
        assert_eq!((of("core 0").median, of("core 0").maximum), (5.0, 9.0));
        assert_eq!((of("DDR").median, of("DDR").maximum), (2.0, 13.0));
        let even = super::figures(&[sample(1.0, 2.0), sample(2.0, 13.0)]);
        assert_eq!((even[0].median, even[0].maximum), (1.5, 2.0));
    }

    #[test]
    fn simulated_cores_fill_in_for_the_kernel_s() {
        let program = |cores: &[f64]| Activity { cores: cores.to_vec(), ..Activity::default() };
        let programs = vec![program(&[1.0]), program(&[0.5, 99.96, 3.0]), program(&[])];
        let mut sample = Sample { seconds: 0.0, loads: Loads::default(), programs };
        assert_eq!(core_loads(&sample), [1.0, 99.96, 3.0]);
        assert!(
            csv(&sample).starts_with("0.000,1.0,100.0,3.0,,,,0,0,0,0.000000"),
            "{}",
            csv(&sample)
        );
        sample.loads.cores = Some(vec![7.0]);
        assert_eq!(core_loads(&sample), [7.0]);
    }

    #[test]
    fn every_line_has_as_many_cells_as_the_header() {
        let cells = |line: &str| line.split(',').count();
        assert_eq!(cells(&csv(&sample(1.0, 2.0))), cells(HEADER));
        let nothing = Sample { seconds: 0.0, loads: Loads::default(), programs: Vec::new() };
        assert_eq!(csv(&nothing), "0.000,,,,,,,,,,", "what nobody reports is empty");
        assert_eq!(cells(&csv(&nothing)), cells(HEADER));
    }
}
