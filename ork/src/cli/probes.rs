//! Commands that measure the device.

use clap::{Args, Subcommand};

use super::DeviceArgs;
use crate::size::Size;

/// A size that a DMA buffer can have.
fn buffer(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    match (1..=rknpu::limits::BUFFER).contains(&size.0) {
        true => Ok(size),
        false => Err(format!(
            "a buffer has 1 to {} bytes, since a domain has no more",
            rknpu::limits::BUFFER
        )),
    }
}

/// `ork probe …`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "cores", "--device", "sim"]);
/// let Command::Probe(ProbeCommand::Cores(args)) = cli.command else { panic!() };
/// assert_eq!(args.device, ork::device::DeviceChoice::Simulator(Default::default()));
/// ```
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Allocate until nothing more fits, in each domain, created only and mapped: how much it maps.
    #[command(visible_alias = "window")]
    Capacity(CapacityArgs),
    /// Load and free weights in one domain, one at a time; exit code 2 on a leak.
    Stream(StreamProbeArgs),
    /// Pack a weight, dump it, load the dump and dump that: equality, times, ratio.
    Persist(PersistArgs),
    /// Fill several domains and alternate jobs between them, checked against the CPU.
    Domains(DomainsArgs),
    /// Run a tiny job on each core, checked against the CPU.
    Cores(DeviceArgs),
    /// Copy rates into cacheable, write-combined and uncached buffers.
    Fill(FillArgs),
}

/// `ork probe capacity`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "capacity", "--domain", "3"]);
/// let Command::Probe(ProbeCommand::Capacity(args)) = cli.command else { panic!() };
/// assert_eq!((args.size.0, args.domain), (64 << 20, Some(3)));
/// ```
#[derive(Args, Clone, Debug)]
pub struct CapacityArgs {
    /// Bytes of each buffer.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = buffer)]
    pub size: Size,
    /// One domain only.
    #[arg(long, value_name = "INDEX")]
    pub domain: Option<u32>,
    /// Memory of the system to leave to others: the probe stops before less can be had.
    #[arg(long, value_name = "SIZE", default_value = "512MiB")]
    pub keep: Size,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe stream`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "stream"]);
/// let Command::Probe(ProbeCommand::Stream(args)) = cli.command else { panic!() };
/// assert_eq!((args.size.0, args.rounds), (256 << 20, 100));
/// ```
#[derive(Args, Clone, Debug)]
pub struct StreamProbeArgs {
    /// Bytes of each weight.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = buffer)]
    pub size: Size,
    /// Weights.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe persist`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "persist", "-k", "512"]);
/// let Command::Probe(ProbeCommand::Persist(args)) = cli.command else { panic!() };
/// assert_eq!((args.k, args.n), (512, 4096));
/// ```
#[derive(Args, Clone, Debug)]
pub struct PersistArgs {
    /// Inputs of the weight.
    #[arg(short, value_name = "K", default_value_t = 4096)]
    pub k: u32,
    /// Output channels of the weight.
    #[arg(short, value_name = "N", default_value_t = 4096)]
    pub n: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe domains`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "domains", "--count", "2"]);
/// let Command::Probe(ProbeCommand::Domains(args)) = cli.command else { panic!() };
/// assert_eq!((args.count, args.rounds), (Some(2), 25));
/// ```
#[derive(Args, Clone, Debug)]
pub struct DomainsArgs {
    /// Domains to use; by default 4, or as many as there are.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(rknpu::limits::DOMAINS)))]
    pub count: Option<u32>,
    /// Bytes to fill each with.
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = buffer)]
    pub size: Size,
    /// Jobs in each.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// `ork probe fill`.
///
/// ```
/// use clap::Parser;
/// use ork::cli::{Cli, Command, ProbeCommand};
///
/// let cli = Cli::parse_from(["ork", "probe", "fill", "--size", "1M"]);
/// let Command::Probe(ProbeCommand::Fill(args)) = cli.command else { panic!() };
/// assert_eq!(args.size.0, 1 << 20);
/// ```
#[derive(Args, Clone, Debug)]
pub struct FillArgs {
    /// Bytes of each buffer.
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = buffer)]
    pub size: Size,
    /// Device.
    #[command(flatten)]
    pub device: DeviceArgs,
}
