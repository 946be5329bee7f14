from dataclasses import dataclass

import torch

import fedloom as fl


@dataclass(frozen=True)
class Bytes(fl.Encoder):
    def init(self, params):
        return 0.0 * params

    def encode(self, client, values, kept):
        sent, left = {}, dict(kept)
        for name, t in values.items():
            v = t + kept[name]
            s = v.abs().amax() / 127
            whole = torch.round(v / torch.where(s > 0, s, torch.ones_like(s)))
            sent[name] = {"scale": s, "whole": whole.to(torch.int8)}
            left[name] = v - s * whole
        return sent, fl.Params(left)

    def decode(self, sent, like):
        return fl.Params({n: sent[n]["scale"] * sent[n]["whole"].to(t.dtype) for n, t in like.items()})


class Small(fl.Link):
    encoder = Bytes()


class Coarse(fl.Part):
    links = (Small(),)
