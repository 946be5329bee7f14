from itertools import combinations

from fedloom.analyses import AnalysisResult, csv_table, summary_table


def measure(run):
    """Measure how far clients' updates agree, by round."""
    import matplotlib.pyplot as plt

    rows = []
    for r in run.replayed_rounds():
        moved = [w.params - r.start.params for w in r.trained]
        cosines = [float(a.dot(b) / (a.sq_norm() * b.sq_norm()).sqrt()) for a, b in combinations(moved, 2)]
        mean = sum(cosines) / len(cosines) if cosines else None
        rows.append([r.number, len(r.clients), mean, min(cosines, default=None)])
    figure, axes = plt.subplots()
    axes.plot([row[0] for row in rows if row[2] is not None], [row[2] for row in rows if row[2] is not None])

    def ratio(value):
        return f"{value:.3f}"

    shown = summary_table("Agreement", {"round": None, "clients": None, "mean": ratio, "lowest": ratio}, rows)
    return AnalysisResult(figure, shown, [csv_table("agree", ["round", "clients", "mean", "lowest"], rows)])
